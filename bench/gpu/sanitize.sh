#!/usr/bin/env bash
# The four tools of compute-sanitizer over a part of the CUDA tests that has every kernel once: both
# paths of the chunk kernels with every kind of decay and key, marked chunks, split and narrow scans,
# token kernels, and the operators around the recurrence.
#
#     bench/gpu/sanitize.sh BUILD/tests/cuda/rankone_cuda_test [TOOL ...]
#
# JOBS=n runs n parts of the tests of a tool and path at a time (racecheck works on the CPU);
# COMPUTE_SANITIZER names another program than the one in the PATH. racecheck wants version 2026.4
# (pip download nvidia-cuda-sanitizer-api==13.5.25, which has the program): older ones report kernels that
# are right (racecheck_patterns.cu; docs/kernel-notes.md, Errors and checks).
# Prints one line per tool, path and part and, where a tool finds something, the first of it.
set -u
refuse() {
  echo "sanitize.sh: $1" >&2
  exit 2
}
[ $# -gt 0 ] || refuse "the test program is missing: sanitize.sh BUILD/tests/cuda/rankone_cuda_test [TOOL ...]"
test=$1
shift
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck initcheck synccheck)
for tool in "${tools[@]}"; do
  case $tool in
    memcheck | racecheck | initcheck | synccheck) ;;
    *) refuse "'$tool' is no tool (memcheck, racecheck, initcheck or synccheck)" ;;
  esac
done
[ -x "$test" ] || refuse "'$test' is no program (BUILD/tests/cuda/rankone_cuda_test)"
sanitizer=${COMPUTE_SANITIZER:-compute-sanitizer} jobs=${JOBS:-1}
command -v "$sanitizer" >/dev/null || refuse "$sanitizer is not in the PATH (it comes with the CUDA toolkit)"
[[ $jobs =~ ^[1-9][0-9]*$ ]] || refuse "JOBS is '$jobs', not a number of processes"
"$sanitizer" --version | tail -1

cases=
for name in packed_bf16 packed_f16 packed_f32 packed_channel_bf16 packed_channel_f16 packed_channel_f32 \
  width_128_bf16 width_128_channel_bf16 width_256_bf16 width_256_scalar_bf16 width_48_bf16 \
  grouped_2_f16 grouped_2_bf16 grouped_8_channel_bf16 none_bf16 two_keys_none_bf16 two_keys_scalar_bf16 \
  two_keys_channel_bf16 two_keys_channel_f16 additive_none_bf16 additive_scalar_bf16 additive_channel_f16 \
  gain_up_to_two_bf16 correlated_near_two_bf16 t7_minus_5_short_f16 width_7_by_3_bf16; do
  cases=$cases:*CudaCases*/$name
done
others=Step.*:ChunkSplit.*:ChunkNarrow*.*:Cluster.*:CudaRows.*:CudaMesaEdges.*:CudaLonghornEdges.*
others=$others:CudaPreconditionEdges.*:CudaGainEdges.*
for suite in CudaLonghorn CudaMesa CudaPrecondition CudaDecay CudaGain; do
  others=$others:Settings/$suite.*/0:Settings/$suite.*/3:Settings/$suite.*/5:Settings/$suite.*/8
done

# One part of the tests: part TOOL PATH NUMBER
part() {
  local tool=$1 path=$2 number=$3 filter log start status seconds
  filter=${cases#:}
  [ "$path" = sm90a ] && filter=$filter:$others
  log=$(mktemp)
  start=$(date +%s.%N)
  RANKONE_CUDA_PATH=$path GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$number "$sanitizer" --tool "$tool" \
    --error-exitcode 9 --print-limit 20 "$test" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1
  status=$?
  seconds=$(awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $start }")
  echo "$tool, $path, $((number + 1)) of $jobs: status $status, $seconds s;" \
    "$(grep -o '[0-9]* tests\? from .* ran' "$log" | tail -1); $(grep -E 'SUMMARY' "$log" | tail -1 | sed 's/=*//')"
  [ $status -eq 0 ] || grep -v '^Running main' "$log" | head -40
  rm -f "$log"
  return $status
}

failed=0
for tool in "${tools[@]}"; do
  for path in sm90a mma; do
    running=()
    for ((number = 0; number < jobs; ++number)); do
      part "$tool" "$path" "$number" &
      running+=($!)
    done
    for process in "${running[@]}"; do
      wait "$process" || failed=1
    done
  done
done
exit $failed
