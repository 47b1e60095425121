/* Decode with the delta rule on a GPU through the C interface: tensors in memory of the CUDA
 * runtime, the workspace asked for and allocated once, the state, in bf16, updated in place step by
 * step on a stream.
 *
 *   nvcc -x c delta_cuda.c $(pkg-config --cflags --libs rankone) -o delta_cuda && ./delta_cuda
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <rankone/rankone.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBatch = 4, kHeads = 2, kKey = 64, kValue = 64, kSteps = 8 };

static rankone_context* context;

static void check(rankone_status status) {
  if (status == RANKONE_OK) return;
  fprintf(stderr, "delta_cuda: %s\n", rankone_last_error(context));
  exit(1);
}

static void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "delta_cuda: %s\n", cudaGetErrorString(error));
  exit(1);
}

/* `count` floats on the GPU: some numbers in (-1, 1) times `scale`. */
static float* on_gpu(size_t count, unsigned seed, float scale) {
  float* host = malloc(count * sizeof *host);
  float* device = NULL;
  if (host == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    host[i] = scale * ((float)(seed >> 8) / 8388608.0f - 1.0f);
  }
  check_cuda(cudaMalloc((void**)&device, count * sizeof *device));
  check_cuda(cudaMemcpy(device, host, count * sizeof *device, cudaMemcpyHostToDevice));
  free(host);
  return device;
}

int main(void) {
  const rankone_options options = {.device = RANKONE_CUDA};
  char message[256];
  if (rankone_context_create(&options, &context, message, sizeof message) != RANKONE_OK) {
    fprintf(stderr, "delta_cuda: %s\n", message);
    return 2;
  }
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream));
  const int64_t keys[3] = {kBatch, kHeads, kKey}, values[3] = {kBatch, kHeads, kValue};
  const int64_t gates[2] = {kBatch, kHeads}, states[4] = {kBatch, kHeads, kKey, kValue};
  float* k = on_gpu(kBatch * kHeads * kKey, 2, 0.2f);
  const size_t state_bytes = (size_t)kBatch * kHeads * kKey * kValue * 2;
  void* state = NULL;
  check_cuda(cudaMalloc(&state, state_bytes));
  check_cuda(cudaMemset(state, 0, state_bytes));
  float* o = on_gpu(kBatch * kHeads * kValue, 7, 0.0f);
  float* q = on_gpu(kBatch * kHeads * kKey, 1, 0.2f);
  float* v = on_gpu(kBatch * kHeads * kValue, 3, 1.0f);
  float* b = on_gpu(kBatch * kHeads, 5, 1.0f);
  const rankone_two_key_inputs in = {
      .q = rankone_row_major(q, RANKONE_F32, 3, keys),
      .e = rankone_row_major(k, RANKONE_F32, 3, keys),
      .w = rankone_row_major(k, RANKONE_F32, 3, keys),
      .v = rankone_row_major(v, RANKONE_F32, 3, values),
      .b = rankone_row_major(b, RANKONE_F32, 2, gates),
      .initial_state = rankone_row_major(state, RANKONE_BF16, 4, states),
      .scale = 0.125};
  const rankone_tensor out = rankone_row_major(o, RANKONE_F32, 3, values);
  rankone_sequences* step = NULL;
  check(rankone_sequences_dense(context, kBatch, 1, &step));

  size_t bytes = 0;
  rankone_call how = {.stream = stream, .query = &bytes};
  check(rankone_two_key_step(context, step, &in, &out, &how));
  how.query = NULL;
  how.workspace_bytes = bytes;
  if (bytes > 0) check_cuda(cudaMalloc(&how.workspace, bytes));
  for (int t = 0; t < kSteps; ++t) check(rankone_two_key_step(context, step, &in, &out, &how));

  float result[kBatch * kHeads * kValue];
  check_cuda(cudaMemcpyAsync(result, o, sizeof result, cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  double squares = 0;
  for (size_t i = 0; i < sizeof result / sizeof *result; ++i) squares += result[i] * result[i];
  printf("%d steps of %d sequences, %d heads; RMS of the output %.6f\n", kSteps, kBatch, kHeads,
         sqrt(squares / (sizeof result / sizeof *result)));
  rankone_sequences_free(step);
  rankone_context_free(context);
  return isfinite(squares) && squares > 0 ? 0 : 1;
}
