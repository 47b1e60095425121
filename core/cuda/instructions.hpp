#pragma once

// The PTX instructions that the kernels use, one function each, and the conversions of the 16-bit
// formats. Fragment layouts are those of the PTX manual; with g = lane / 4 and t = lane % 4:
//
//   m16n8k16   A: a0 (g, 2t..2t+1)  a1 (g+8, 2t..)  a2 (g, 2t+8..)  a3 (g+8, 2t+8..)
//              B: b0 (k 2t..2t+1, n g)  b1 (k 2t+8.., n g)
//              C: d0 d1 (g, 2t..2t+1)   d2 d3 (g+8, 2t..)
//   m16n8k8    A: a0 (g, t)  a1 (g+8, t)  a2 (g, t+4)  a3 (g+8, t+4);   B: b0 (k t, n g)  b1 (k
//   t+4, n g) wgmma      rows 16 w.. of warp w: A as m16n8k16, C as n / 8 tiles of m16n8 side by
//   side
//
// So a C fragment of two neighbouring n-tiles, packed, is an A fragment of the next product.
// Format is bf16 or f16. All lanes of a warp call together.

#include "core/cuda/language.hpp"
#include "core/cuda/tensor_map.hpp"

#if defined(RANKONE_CUDA_EMULATION)
#include "core/cuda_emulation/instructions.hpp"
#else

namespace rankone::cuda {

// ---- Conversions -------------------------------------------------------------------------------

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ float widen(f16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

// Two numbers in a register, `low` in the lower half; rounded to nearest even.
template <class Format>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t result;
  if constexpr (std::is_same_v<Format, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}
template <class Format>
__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
  if constexpr (std::is_same_v<Format, bf16>) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U));
  } else {
    float low, high;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
    return make_float2(low, high);
  }
}
template <class Format>
__device__ __forceinline__ Format narrow(float value) {
  if constexpr (std::is_same_v<Format, float>) {
    return value;
  } else {
    return Format{static_cast<std::uint16_t>(pack<Format>(value, 0.0F))};
  }
}

// The nearest tf32 (10 bits of mantissa), as a float32 whose lower bits are zero.
__device__ __forceinline__ std::uint32_t to_tf32(float value) {
  std::uint32_t result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(value));
  return result;
}

// 2^x to about 2^-22; 0 for x far below -126 (results below 2^-126 are flushed).
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// The binary logarithm and the reciprocal to about 2^-22; inputs below 2^-126 count as zero.
__device__ __forceinline__ float log2_fast(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// ---- Words that blocks pass to one another while they run
// ------------------------------------------

// Each is whole by itself: in no order with other accesses of its thread. Who waits for a word
// reads it again after wait_a_moment(). A block waits only for blocks before it, which are under
// way.
__device__ __forceinline__ void put_word(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}
__device__ __forceinline__ float peek_word(const float* from) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void wait_a_moment() {}

// ---- Global memory -----------------------------------------------------------------------------

// 8 or 16 bytes, aligned to their size, to global memory in one instruction. From an assignment
// nvcc may make several smaller stores.
__device__ __forceinline__ void store_word(void* to, uint2 word) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x),
               "r"(word.y)
               : "memory");
}
__device__ __forceinline__ void store_word(void* to, uint4 word) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}
__device__ __forceinline__ void store_word(void* to, float4 word) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(word.x), "f"(word.y), "f"(word.z), "f"(word.w)
               : "memory");
}
// Where `wanted`; without a branch.
__device__ __forceinline__ void store_word_if(bool wanted, void* to, uint4 word) {
  asm volatile(
      "{.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n"
      "@wanted st.global.v4.b32 [%0], {%1, %2, %3, %4};}" ::"l"(__cvta_generic_to_global(to)),
      "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w), "r"(wanted ? 1 : 0)
      : "memory");
}

// ---- Shared memory -----------------------------------------------------------------------------

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Zeros over what may be zeros already, and which others may be reading or clearing as well: the
// one kind of store that is in no order with theirs.
__device__ __forceinline__ void clear_again(uint4* to) { *to = make_uint4(0, 0, 0, 0); }

// Four (two) 8 x 8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix
// i / 8 (16 bytes, aligned; lanes from 16 on are not looked at by _x2). Register j of a lane:
// matrix j, row g, columns 2t and 2t + 1; with _transposed rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void load_matrix_x4(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrix_x2(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrix_x2_transposed(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}

// The transpose of an 8 x 8 matrix of 16-bit elements that the warp holds as an ldmatrix register.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t mine) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(mine));
  return result;
}

// The opposite of load_matrix_x4().
__device__ __forceinline__ void store_matrix_x4(void* row, const std::uint32_t (&r)[4]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
#else
  const std::uint32_t address = shared_address(row);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int matrix = 0; matrix < 4; ++matrix) {
    const std::uint32_t to =
        __shfl_sync(0xffffffffU, address, matrix * 8 + lane / 4) + lane % 4 * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(r[matrix]) : "memory");
  }
#endif
}
// The opposite of load_matrix_x4_transposed(): what a lane holds of row g goes to column g.
__device__ __forceinline__ void store_matrix_x4_transposed(void* row, const std::uint32_t (&r)[4]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  store_matrix_x4(row, {transpose_matrix(r[0]), transpose_matrix(r[1]), transpose_matrix(r[2]),
                        transpose_matrix(r[3])});
#endif
}

// ---- Products of one warp: d += a b ------------------------------------------------------------

template <class Format>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<Format, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                                 std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Asynchronous copies -----------------------------------------------------------------------

// 16 bytes from global to shared memory, both aligned; where not `valid`, 16 bytes of zero and
// nothing is read. Complete after copy_commit() and copy_wait() of the same thread.
__device__ __forceinline__ void copy_16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
// The same for 4 bytes.
__device__ __forceinline__ void copy_4(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most Left of the groups that this thread committed are incomplete.
template <int Left>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// ---- Hopper: barriers in shared memory, bulk copies, products of four warps
// ----------------------

// Before wgmma or a bulk copy reads shared memory that ordinary stores of this thread wrote (and
// before the barrier that tells others). Nothing before Hopper.
__device__ __forceinline__ void fence_async() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A barrier in shared memory. One thread initialises it, all wait for __syncthreads() before use.
__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives, and has the present phase wait for `bytes` of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint64_t* barrier,
                                                       std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Waits until the phase of the given parity has ended: 0 for the first, then 1, 0, ... Where not
// `wanted` it does nothing, without a branch that the compiler would see: products of wgmma may run
// meanwhile.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, std::uint32_t parity,
                                              bool wanted = true) {
  asm volatile(
      "{.reg .pred done;\n"
      "setp.eq.u32 done, %2, 0;\n"
      "@done bra.uni over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "over:}\n" ::"r"(shared_address(barrier)),
      "r"(parity), "r"(wanted ? 1 : 0)
      : "memory");
}

// `bytes` (a multiple of 16, both sides aligned to 16) from global to shared memory by the copy
// engine; counted at `barrier`.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, std::uint32_t bytes,
                                          std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
// 64 rows from `row` and 64 elements (or as many as the map was made for) from `column` of one head
// of a tensor of rows, 128 bytes an element counted at `barrier`, as a block of a RowTile (aligned
// to 1,024 bytes).
__device__ __forceinline__ void copy_rows(void* shared, const TensorMap* map, int column, int head,
                                          int row, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// ---- Clusters: blocks that run together and reach each other's shared memory. A kernel that uses
// these is started with launch_clusters(); alone in its cluster a block has rank 0 of 1.

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ int cluster_blocks() {
  int blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
// Of all threads of the cluster. Wanted after barriers are initialised, before others may reach
// them, and at the end: no block may end while others may still reach its shared memory.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// Arrives at the barrier that stands in block `rank` of the cluster where this one has `barrier`.
// Says that this thread's reads are over, no more: what it wrote is not passed on (an arrival that
// did so would first wait a microsecond for all writes of the thread, also those to global memory).
__device__ __forceinline__ void mbarrier_arrive_at(std::uint64_t* barrier, int rank) {
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
// copy_bulk() and copy_rows() to the same place of every block of the cluster whose bit is set in
// `blocks`; each counts the bytes at its own barrier, which stands where `barrier` does here.
__device__ __forceinline__ void copy_bulk_to(void* shared, const void* global, std::uint32_t bytes,
                                             std::uint64_t* barrier, std::uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>(blocks))
      : "memory");
}
__device__ __forceinline__ void copy_rows_to(void* shared, const TensorMap* map, int column,
                                             int head, int row, std::uint64_t* barrier,
                                             std::uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_address(barrier)),
      "h"(static_cast<std::uint16_t>(blocks))
      : "memory");
}

// `bytes` (a multiple of 16, both sides aligned to 16) from shared to global memory by the copy
// engine, on behalf of this thread; fence_async() by the threads that wrote them comes before. The
// bytes may be overwritten after store_bulk_read().
__device__ __forceinline__ void store_bulk(void* global, const void* shared, std::uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(global),
      "r"(shared_address(shared)), "r"(bytes)
      : "memory");
}
// Until all bulk stores of this thread but the last Left have read shared memory.
template <int Left = 0>
__device__ __forceinline__ void store_bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}
// Brings the description of a tensor near, before the first copy_rows().
__device__ __forceinline__ void fetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Of a matrix in shared memory. Not swizzled: in cores of 8 rows of 16 bytes (128 bytes, rows one
// behind the other); `leading` and `stride` are the distances in bytes between neighbouring cores:
// for a matrix read with its contraction along the 16-byte rows leading is the one along the
// contraction and stride the one across it; for a transposed one (contraction down the 8 rows)
// leading is again the one along the contraction.
// Swizzled (1): in groups of 8 rows of 128 bytes (1,024 bytes, aligned so) whose 16-byte pieces
// stand at piece ^ row; stride is the distance between neighbouring groups of 8 rows, leading, for
// a transposed matrix, the one between neighbouring blocks of 64 columns. (2): likewise with rows
// of 64 bytes, blocks of 32 columns and pieces at piece ^ row / 2.
__device__ __forceinline__ std::uint64_t matrix_descriptor(const void* start, std::uint32_t leading,
                                                           std::uint32_t stride, int swizzle) {
  return (static_cast<std::uint64_t>(shared_address(start) & 0x3ffffU) >> 4) |
         (static_cast<std::uint64_t>(leading >> 4) << 16) |
         (static_cast<std::uint64_t>(stride >> 4) << 32) |
         (static_cast<std::uint64_t>(swizzle) << 62);
}

#else

// Named in code that older GPUs never run.
__device__ __forceinline__ void mbarrier_init(std::uint64_t*, int) {}
__device__ __forceinline__ void mbarrier_fence() {}
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t*) {}
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint64_t*, std::uint32_t) {}
__device__ __forceinline__ void mbarrier_wait(std::uint64_t*, std::uint32_t, bool = true) {}
__device__ __forceinline__ void copy_bulk(void*, const void*, std::uint32_t, std::uint64_t*) {}
__device__ __forceinline__ void copy_rows(void*, const TensorMap*, int, int, int, std::uint64_t*) {}
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ int cluster_blocks() { return 1; }
__device__ __forceinline__ void cluster_sync() { __syncthreads(); }
__device__ __forceinline__ void mbarrier_arrive_at(std::uint64_t*, int) {}
__device__ __forceinline__ void copy_bulk_to(void*, const void*, std::uint32_t, std::uint64_t*,
                                             std::uint32_t) {}
__device__ __forceinline__ void copy_rows_to(void*, const TensorMap*, int, int, int, std::uint64_t*,
                                             std::uint32_t) {}
__device__ __forceinline__ void store_bulk(void*, const void*, std::uint32_t) {}
template <int Left = 0>
__device__ __forceinline__ void store_bulk_read() {}
__device__ __forceinline__ void fetch_map(const TensorMap*) {}

#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Left>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}
// Of four neighbouring warps, all together: hands registers back to the block, down to Count a
// thread, or takes them until each thread has Count (a multiple of 8), once others have given them.
template <int Count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
// Keeps the compiler from moving accesses to accumulators over a wait.
template <int Count>
__device__ __forceinline__ void wgmma_hold(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d += a b: a [64, 16] in registers, b [16, N] in shared memory; d is cleared first where `clear`.
// Asynchronous: wgmma_fence() before the first, wgmma_commit() after the last, wgmma_wait() before
// d is read or a is written.
template <class Format, bool Transposed, int Half>
__device__ __forceinline__ void wgmma_k16(float (&d)[Half], const std::uint32_t (&a)[4],
                                          std::uint64_t b, bool clear) {
  static_assert(Half == 16 || Half == 32 || Half == 64, "N is 32, 64 or 128");
  const int keep = clear ? 0 : 1;
#define RANKONE_D8(i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define RANKONE_WGMMA_32(FORMAT)                                                                 \
  asm volatile(                                                                                  \
      "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." FORMAT "." FORMAT                            \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, " \
      "1, %22;}\n"                                                                               \
      : RANKONE_D8(0), RANKONE_D8(8)                                                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(Transposed ? 1 : 0))
#define RANKONE_WGMMA_64(FORMAT)                                                                 \
  asm volatile(                                                                                  \
      "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." FORMAT "." FORMAT                            \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
      "%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;}\n"               \
      : RANKONE_D8(0), RANKONE_D8(8), RANKONE_D8(16), RANKONE_D8(24)                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(Transposed ? 1 : 0))
#define RANKONE_WGMMA_128(FORMAT)                                                                \
  asm volatile(                                                                                  \
      "{.reg .pred p; setp.ne.b32 p, %69, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." FORMAT "." FORMAT                           \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
      "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
      "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "               \
      "{%64,%65,%66,%67}, %68, p, 1, 1, %70;}\n"                                                 \
      : RANKONE_D8(0), RANKONE_D8(8), RANKONE_D8(16), RANKONE_D8(24), RANKONE_D8(32),            \
        RANKONE_D8(40), RANKONE_D8(48), RANKONE_D8(56)                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(Transposed ? 1 : 0))
  if constexpr (std::is_same_v<Format, bf16>) {
    if constexpr (Half == 16) RANKONE_WGMMA_32("bf16");
    if constexpr (Half == 32) RANKONE_WGMMA_64("bf16");
    if constexpr (Half == 64) RANKONE_WGMMA_128("bf16");
  } else {
    if constexpr (Half == 16) RANKONE_WGMMA_32("f16");
    if constexpr (Half == 32) RANKONE_WGMMA_64("f16");
    if constexpr (Half == 64) RANKONE_WGMMA_128("f16");
  }
#undef RANKONE_WGMMA_128
#undef RANKONE_WGMMA_64
#undef RANKONE_WGMMA_32
#undef RANKONE_D8
}

// The same with a in shared memory as well: [64, 16], or its transpose. d is cleared first where
// `clear`.
template <class Format, bool TransposedA, bool TransposedB, int Half>
__device__ __forceinline__ void wgmma_k16_shared(float (&d)[Half], std::uint64_t a, std::uint64_t b,
                                                 bool clear = false) {
  static_assert(Half == 8 || Half == 16 || Half == 32 || Half == 64, "N is 16, 32, 64 or 128");
  const int keep = clear ? 0 : 1;
#define RANKONE_D8(i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define RANKONE_INPUTS "l"(a), "l"(b), "r"(keep), "n"(TransposedA ? 1 : 0), "n"(TransposedB ? 1 : 0)
#define RANKONE_WGMMA_16(FORMAT)                                      \
  asm volatile(                                                       \
      "{.reg .pred p; setp.ne.b32 p, %10, 0;\n"                       \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." FORMAT "." FORMAT \
      " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, %11, %12;}\n"     \
      : RANKONE_D8(0)                                                 \
      : RANKONE_INPUTS)
#define RANKONE_WGMMA_32(FORMAT)                                                                  \
  asm volatile(                                                                                   \
      "{.reg .pred p; setp.ne.b32 p, %18, 0;\n"                                                   \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." FORMAT "." FORMAT                             \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, %19, %20;}\n" \
      : RANKONE_D8(0), RANKONE_D8(8)                                                              \
      : RANKONE_INPUTS)
#define RANKONE_WGMMA_64(FORMAT)                                                                 \
  asm volatile(                                                                                  \
      "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." FORMAT "." FORMAT                            \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
      "%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, %35, %36;}\n"                        \
      : RANKONE_D8(0), RANKONE_D8(8), RANKONE_D8(16), RANKONE_D8(24)                             \
      : RANKONE_INPUTS)
#define RANKONE_WGMMA_128(FORMAT)                                                                \
  asm volatile(                                                                                  \
      "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." FORMAT "." FORMAT                           \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
      "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
      "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "               \
      "%64, %65, p, 1, 1, %67, %68;}\n"                                                          \
      : RANKONE_D8(0), RANKONE_D8(8), RANKONE_D8(16), RANKONE_D8(24), RANKONE_D8(32),            \
        RANKONE_D8(40), RANKONE_D8(48), RANKONE_D8(56)                                           \
      : RANKONE_INPUTS)
  if constexpr (std::is_same_v<Format, bf16>) {
    if constexpr (Half == 8) RANKONE_WGMMA_16("bf16");
    if constexpr (Half == 16) RANKONE_WGMMA_32("bf16");
    if constexpr (Half == 32) RANKONE_WGMMA_64("bf16");
    if constexpr (Half == 64) RANKONE_WGMMA_128("bf16");
  } else {
    if constexpr (Half == 8) RANKONE_WGMMA_16("f16");
    if constexpr (Half == 16) RANKONE_WGMMA_32("f16");
    if constexpr (Half == 32) RANKONE_WGMMA_64("f16");
    if constexpr (Half == 64) RANKONE_WGMMA_128("f16");
  }
#undef RANKONE_WGMMA_128
#undef RANKONE_WGMMA_64
#undef RANKONE_WGMMA_32
#undef RANKONE_WGMMA_16
#undef RANKONE_INPUTS
#undef RANKONE_D8
}

#endif

}  // namespace rankone::cuda

#endif
