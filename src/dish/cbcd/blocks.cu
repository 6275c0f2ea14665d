// Data structures, the barrier between blocks, and reductions within a block, for the kernel in sweep.cu (which is
// compiled after this file).

#ifndef LINEAR
#define LINEAR float  // type of q
#endif
#ifndef THREADS
#define THREADS 1024
#endif
#ifndef SHARED_MEMORY
#define SHARED_MEMORY(T, one, U, room) __shared__ T one; extern __shared__ U room[]
#endif
#define BINS THREADS  // histogram bins: one per thread
#define WARPS (THREADS / 32)
#define AHEAD 4  // keys per read: a thread waits for memory once
#define INF __longlong_as_double(0x7ff0000000000000ll)

typedef unsigned int word;
typedef unsigned long long key_t_;
typedef long long whole;

struct Sizes {
    int n, r, labels, words, max_steps;  // words: 32-bit words per column
    double w, lam;
};

struct Memory {
    unsigned short* signs;  // (r, n): H as ±1 in bfloat16, read first and written last
    word* by_bit;        // (r, words): bit i of word j is row 32 j + i
    word* by_row;        // (ceil(r / 32), n): bit i of word j is column 32 j + i
    word *b, *kept;      // (words,)
    key_t_* keys;        // (n,): scores as integers with the same order
    const int* group;    // (n,)
    const int *first, *of;  // labels of a group: of[first[g]] … of[first[g + 1] − 1]; null: the group is the label
    const double* diag;  // (groups,): Q_ii
    const LINEAR* q;     // (r, n)
    int *u, *z, *bins;   // (2, r + 1), (2, labels), (3, BINS), initially zero
    double* part;        // (5, blocks): qᵀb; smallest and largest score where b is 1, and where b is −1
    int* moved;          // (blocks,)
    int* equal;          // (blocks,)
    word* barrier;       // initially zero
    double *hSh, *qh;    // (r,)
    whole* found;        // steps, moves, and 1 + the bit whose objective was not finite (0: none)
};

struct Shared {
    int bins[BINS];
    double reals[5][WARPS];
    whole wholes[2][WARPS];
    double all[5];  // qᵀb; smallest (negated) and largest score where b is −1, and where b is 1
    whole moved;
    key_t_ lo;
    int need, inside;
};

#ifndef FRESH
// Read what other blocks have written: bypass the cache of the multiprocessor.
template <class T> __device__ T fresh(const T* p) { return *(const volatile T*)p; }
#endif

__device__ void everybody(const Memory& m, word& target) {
    target += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(m.barrier, 1u);
        while (fresh(m.barrier) < target) { }
        __threadfence();
    }
    __syncthreads();
}

// --- sums and maxima over the threads of a warp and of a block; all threads get the result ---

template <class T> __device__ T warp_sum(T x) {
    for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

__device__ double warp_max(double x) {
    for (int d = 16; d; d >>= 1) x = fmax(x, __shfl_xor_sync(~0u, x, d));
    return x;
}

__device__ void block_sums(whole& x, whole& y, Shared& s) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum(x), y = warp_sum(y);
    __syncthreads();
    if (lane == 0) s.wholes[0][warp] = x, s.wholes[1][warp] = y;
    __syncthreads();
    x = warp_sum(lane < WARPS ? s.wholes[0][lane] : 0), y = warp_sum(lane < WARPS ? s.wholes[1][lane] : 0);
}

__device__ whole block_sum(whole x, Shared& s) {
    whole none = 0;
    block_sums(x, none, s);
    return x;
}

// Prefix sum of one integer per thread, and the sum over all threads.
__device__ int block_scan(int x, int& all, Shared& s) {
    int lane = threadIdx.x % 32, before = x;
    for (int d = 1; d < 32; d <<= 1) {
        int other = __shfl_up_sync(~0u, before, d);
        if (lane >= d) before += other;
    }
    __syncthreads();
    if (lane == 31) s.wholes[0][threadIdx.x / 32] = before;
    __syncthreads();
    int of_warp = lane < WARPS ? (int)s.wholes[0][lane] : 0;
    all = warp_sum(of_warp);
    return warp_sum(lane < (int)threadIdx.x / 32 ? of_warp : 0) + before - x;
}
