// The parts of a momentum step other than its two products, in three phases of one launch each: gather the batch of
// rows, with a 1 for the intercept; compute p − y from the scores; update W. The step number t is in memory, so that
// one CUDA graph serves all steps.

struct Step {
    const float *U, *weight;  // (n, m), (n,): whitened rows
    const int* group;         // (n,)
    const int *first, *of;    // labels of a group: of[first[g]] … of[first[g + 1] − 1]; null: the group is the label
    const long long* order;   // (updates, size): row indices of every batch
    const int* t;             // number of completed steps
    float *batch, *scores;    // (size, wide), (size, labels_wide)
    float *gradient, *W, *move;  // (wide, labels_wide): the row after the last feature is the intercept
    int m, wide, labels, labels_wide, size, updates, one_label;
    float rate, decay, momentum;
};

#define THREADS 256

__device__ float over_block(float x, bool largest) {
    __shared__ float parts[THREADS / 32];
    for (int d = 16; d; d >>= 1) {
        float other = __shfl_xor_sync(~0u, x, d);
        x = largest ? fmaxf(x, other) : x + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int i = 1; i < THREADS / 32; ++i) x = largest ? fmaxf(x, parts[i]) : x + parts[i];
    return x;
}

__device__ void gather(const Step& s, long long row) {
    const float* from = s.U + row * s.m;
    float* to = s.batch + (size_t)blockIdx.x * s.wide;
    for (int j = threadIdx.x; j < s.wide; j += THREADS) to[j] = j < s.m ? from[j] : j == s.m;
}

__device__ void excess(const Step& s, long long row) {
    float *z = s.scores + (size_t)blockIdx.x * s.labels_wide, weight = s.weight[row], most = -3.4e38f, sum = 0;
    if (s.one_label) {
        for (int j = threadIdx.x; j < s.labels; j += THREADS) most = fmaxf(most, z[j]);
        most = over_block(most, true);
        for (int j = threadIdx.x; j < s.labels; j += THREADS) sum += z[j] = expf(z[j] - most);
        weight /= over_block(sum, false);
    }
    for (int j = threadIdx.x; j < s.labels_wide; j += THREADS)
        z[j] = j >= s.labels ? 0 : weight * (s.one_label ? z[j] : 1 / (1 + expf(-z[j])));
    __syncthreads();
    int g = s.group[row], start = s.first ? s.first[g] : g, stop = s.first ? s.first[g + 1] : g + 1;
    for (int i = start + threadIdx.x; i < stop; i += THREADS) z[s.first ? s.of[i] : i] -= s.weight[row];
}

__device__ void update(const Step& s, float rate) {
    size_t here = (size_t)s.m * s.labels_wide, all = here + s.labels_wide;  // rows after the intercept stay 0
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < all; i += (size_t)gridDim.x * THREADS) {
        float W = s.W[i], gradient = s.gradient[i] / s.size + (i < here ? s.decay * W : 0);
        float move = s.momentum * s.move[i] - rate * gradient;
        s.move[i] = move;
        s.W[i] = W + move;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) steps(Step s, int phase, int ahead) {
    int t = *s.t + ahead;
    if (phase == 2) return update(s, s.rate * (1 - (float)t / s.updates));
    long long row = s.order[(size_t)t * s.size + blockIdx.x];
    if (phase == 0) gather(s, row);
    else excess(s, row);
}
