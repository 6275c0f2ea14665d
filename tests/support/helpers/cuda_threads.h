// A CUDA kernel as threads of the CPU, few blocks of few warps each: barriers, shuffles and atomics as CUDA has them.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sched.h>
#include <thread>
#include <vector>
#ifndef THREADS
#define THREADS 64
#endif
#define FRESH
#define __device__ static
#define __shared__ static  // for kernels that are launched by ``one_by_one``
#define __global__
#define __launch_bounds__(...)
#define SHARED_MEMORY(T, one, U, room) T& one = *(T*)here->memory.data(); U* room = (U*)(here->memory.data() + sizeof(T))

struct Index { unsigned x; };
struct Warp { std::barrier<> meet{32}; uint64_t said[32]; };
struct Block { std::barrier<> meet{THREADS}; std::vector<char> memory; Warp warps[THREADS / 32]; };
static thread_local Index threadIdx, blockIdx, gridDim;
static thread_local Block* here;
using std::isfinite, std::max, std::min;

static void __syncthreads() { here->meet.arrive_and_wait(); }
static void __threadfence() {}
template <class T> static T said_by(T x, int lane) {
    Warp& warp = here->warps[threadIdx.x / 32];
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof(T));
    warp.said[threadIdx.x % 32] = bits;
    warp.meet.arrive_and_wait();
    bits = warp.said[lane];
    warp.meet.arrive_and_wait();
    memcpy(&x, &bits, sizeof(T));
    return x;
}
template <class T> static T __shfl_xor_sync(unsigned, T x, int d) { return said_by(x, (threadIdx.x % 32) ^ d); }
template <class T> static T __shfl_up_sync(unsigned, T x, int d) {
    int lane = threadIdx.x % 32;
    return said_by(x, lane >= d ? lane - d : lane);
}
static unsigned __ballot_sync(unsigned, bool x) {
    unsigned bit = (unsigned)x << threadIdx.x % 32;
    for (int d = 16; d; d >>= 1) bit |= __shfl_xor_sync(~0u, bit, d);
    return bit;
}
template <class T> static T atomicAdd(T* p, T x) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }
template <class T> static T fresh(const T* p) {
    T x;
    __atomic_load((T*)p, &x, __ATOMIC_SEQ_CST);
    if (sizeof(T) == 4) sched_yield();  // who waits for others lets them work
    return x;
}
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }

template <class Work> static void some(int first, int last, int blocks, size_t shared, Work work) {
    std::vector<std::unique_ptr<Block>> all;
    std::vector<std::thread> threads;
    for (int b = first; b < last; ++b) {
        Block* block = all.emplace_back(new Block).get();
        block->memory.resize(shared);
        for (int t = 0; t < THREADS; ++t)
            threads.emplace_back([=] {
                here = block, threadIdx.x = t, blockIdx.x = b, gridDim.x = blocks;
                work();
            });
    }
    for (auto& thread : threads) thread.join();
}

// All blocks at once, or one after the other.
template <class Work> static void together(int blocks, size_t shared, Work work) { some(0, blocks, blocks, shared, work); }
template <class Work> static void one_by_one(int blocks, Work work) {
    for (int b = 0; b < blocks; ++b) some(b, b + 1, blocks, 0, work);
}
