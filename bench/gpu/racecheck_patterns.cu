// Kernels that are right by construction and what compute-sanitizer's racecheck says of them:
//
//     nvcc -std=c++17 -arch=sm_90a -lineinfo bench/gpu/racecheck_patterns.cu -o patterns
//     compute-sanitizer --tool racecheck --racecheck-report hazard ./patterns N
//
// Hazards on an H200, by version 2025.3 and by 2026.4:
//
//     0  readers say that they have read by barrier.arrive, as in the PTX manual     1,536      0
//     1  by barrier.sync                                                                 0      0
//     2  by mbarrier.arrive of one lane behind __syncwarp()                          1,488  1,488
//     3  by mbarrier.arrive of all lanes                                                 0      0
//     4  reads and writes with __syncthreads() between, and two of three groups
//        that said something to the third by barrier.arrive before                   2,432      0
//     5  by barrier.sync                                                                 0      0
//     6  as 2, behind a shuffle                                                      1,488  1,488
//     7  as 2, behind a named barrier of the warp                                    1,488  1,488
//     8  as 2, one lane arrives for all 32 by the count                              1,488  1,488
//     9  as 3, but one lane waits for its warp before __syncwarp()                   1,488  1,488
//    10  readers meet others at a named barrier, who tell by an mbarrier, all lanes  1,536  1,536
//    11  readers tell others by an mbarrier, who tell by another, all lanes              0      0
//    12  the same, but of the others one lane                                            0      0
//
// So to both an mbarrier orders what its arriving threads themselves have done before, and what
// came to them over other mbarriers, and that for the threads that themselves wait; nothing that
// came to them over another kind of barrier. In 0 to 9 the first warp writes a word a lane, four
// times; the second reads each before it is written again.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

__device__ void sync(int id) { asm volatile("barrier.sync %0, 64;" ::"r"(id) : "memory"); }
__device__ void arrive(int id) { asm volatile("barrier.arrive %0, 64;" ::"r"(id) : "memory"); }

template <bool Waits>
__global__ void named(const std::uint32_t* from, std::uint32_t* to) {
  __shared__ std::uint32_t words[32];
  const unsigned lane = threadIdx.x % 32;
  std::uint32_t sum = 0;
  for (int round = 0; round < 4; ++round) {
    if (threadIdx.x < 32) {
      words[lane] = from[round] + lane;
      arrive(1);
      sync(2);
    } else {
      sync(1);
      sum += words[31 - lane];
      if (Waits) {
        sync(2);
      } else {
        arrive(2);
      }
    }
  }
  if (threadIdx.x >= 32) to[lane] = sum;
}

// Two groups of warps write words, the third reads them, and they are written again.
template <bool Waits>
__global__ void groups(const std::uint32_t* from, std::uint32_t* to) {
  __shared__ std::uint32_t words[256];
  const unsigned thread = threadIdx.x % 128, group = threadIdx.x / 128;
  std::uint32_t sum = 0;
  for (int round = 0; round < 4; ++round) {
    if (group < 2) words[threadIdx.x] = from[round] + thread;
    __syncthreads();
    if (group == 2) sum += words[(thread + 32) % 128] + words[128 + (thread + 64) % 128];
    __syncthreads();
    if (group < 2) words[threadIdx.x] = round;
    __syncthreads();
    sum += words[(threadIdx.x + 32) % 256];
    if (!Waits && group < 2) {
      asm volatile("barrier.arrive 4, 384;" ::: "memory");
    } else {
      asm volatile("barrier.sync 4, 384;" ::: "memory");
    }
    __syncthreads();
  }
  to[threadIdx.x] = sum;
}

__device__ std::uint32_t address_of(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ void start(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(arrivals)
               : "memory");
}
__device__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(barrier)) : "memory");
}
__device__ void wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(address_of(barrier)),
      "r"(parity)
      : "memory");
}

template <bool All>
__global__ void counted(const std::uint32_t* from, std::uint32_t* to) {
  __shared__ std::uint32_t words[32];
  __shared__ std::uint64_t full, empty;
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    start(&full, 32);
    start(&empty, All ? 32 : 1);
  }
  __syncthreads();
  std::uint32_t sum = 0;
  for (int round = 0; round < 4; ++round) {
    if (threadIdx.x < 32) {
      if (round > 0) wait(&empty, (round - 1) % 2);
      words[lane] = from[round] + lane;
      arrive(&full);
    } else {
      wait(&full, round % 2);
      sum += words[31 - lane];
      __syncwarp();
      if (All || lane == 0) arrive(&empty);
    }
  }
  if (threadIdx.x >= 32) to[lane] = sum;
}

enum class Lead { shuffle, named, count, waits };

// Kinds of one lane that speaks, or waits, for its warp.
template <Lead Kind>
__global__ void leads(const std::uint32_t* from, std::uint32_t* to) {
  __shared__ std::uint32_t words[32];
  __shared__ std::uint64_t full, empty;
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    start(&full, 32);
    start(&empty, Kind == Lead::waits || Kind == Lead::count ? 32 : 1);
  }
  __syncthreads();
  std::uint32_t sum = 0;
  for (int round = 0; round < 4; ++round) {
    if (threadIdx.x < 32) {
      if (round > 0 && (Kind != Lead::waits || lane == 0)) wait(&empty, (round - 1) % 2);
      __syncwarp();
      words[lane] = from[round] + lane;
      arrive(&full);
    } else {
      wait(&full, round % 2);
      sum += words[31 - lane];
      if (Kind == Lead::shuffle) sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      if (Kind == Lead::named) asm volatile("barrier.sync 3, 32;" ::: "memory");
      __syncwarp();
      if (Kind == Lead::count) {
        if (lane == 0) {
          asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 32;" ::"r"(address_of(&empty))
                       : "memory");
        }
      } else if (Kind == Lead::waits || lane == 0) {
        arrive(&empty);
      }
    }
  }
  if (threadIdx.x >= 32) to[lane] = sum;
}

// The first warp reads what the third writes and tells the second, which tells the third.
template <bool Named, bool All>
__global__ void third(const std::uint32_t* from, std::uint32_t* to) {
  __shared__ std::uint32_t words[32];
  __shared__ std::uint64_t full, read, empty;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    start(&full, 32);
    start(&read, 32);
    start(&empty, All ? 32 : 1);
  }
  __syncthreads();
  std::uint32_t sum = 0;
  for (int round = 0; round < 4; ++round) {
    if (warp == 2) {
      if (round > 0) wait(&empty, (round - 1) % 2);
      words[lane] = from[round] + lane;
      arrive(&full);
    } else if (warp == 0) {
      wait(&full, round % 2);
      sum += words[31 - lane];
      if (Named) {
        sync(1);
      } else {
        arrive(&read);
      }
    } else {
      if (Named) {
        sync(1);
      } else {
        wait(&read, round % 2);
      }
      __syncwarp();
      if (All || lane == 0) arrive(&empty);
    }
  }
  if (warp == 0) to[lane] = sum;
}

int main(int argc, char** argv) {
  void (*const kernels[])(const std::uint32_t*, std::uint32_t*) = {
      named<false>,       named<true>,        counted<false>,       counted<true>,
      groups<false>,      groups<true>,       leads<Lead::shuffle>, leads<Lead::named>,
      leads<Lead::count>, leads<Lead::waits>, third<true, true>,    third<false, true>,
      third<false, false>};
  const int number = argc == 2 ? std::atoi(argv[1]) : -1;
  if (number < 0 || number > 12) {
    std::fprintf(stderr, "patterns: a number from 0 to 12 is missing\n");
    return 2;
  }
  std::uint32_t* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, 4096);
  if (status == cudaSuccess) status = cudaMemset(memory, 0, 4096);
  if (status == cudaSuccess) {
    const int threads = number == 4 || number == 5 ? 384 : number < 10 ? 64 : 96;
    kernels[number]<<<4, threads>>>(memory, memory + 128);
    status = cudaDeviceSynchronize();
  }
  std::printf("%s\n", cudaGetErrorString(status));
  return status == cudaSuccess ? 0 : 1;
}
