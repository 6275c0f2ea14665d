// One sweep of Fast C-BCD in one launch: all bits, each until it stops changing (see algorithm1.py).
//
// With S = w YYᵀ − 1, a step needs only integers of a column b: z = Yᵀb per label, u = H'ᵀb per bit, and 1ᵀb.
// Every block owns a range of rows, in words of 32 rows: their codes by row (`by_row`) and by column (`by_bit`), b and
// its scores. Blocks exchange sums of integers (by atomics, so the order does not matter), their parts of qᵀb, which
// every block adds in the same order, and the histograms of the selection. Each phase ends with a barrier over all
// blocks, so the launch must be cooperative.

// Convert H to bits, by row and by column, and back.
__device__ void pack(const Sizes& k, const Memory& m, int w0, int w1) {
    for (int start = 32 * w0; start < 32 * w1; start += THREADS) {
        int i = start + threadIdx.x;
        if (i >= 32 * w1) break;  // a whole warp
        word h = 0;
        for (int j = 0; j < k.r; ++j) {
            word one = i < k.n && !(m.signs[(size_t)j * k.n + i] >> 15);
            h |= one << j % 32;
            word column = __ballot_sync(~0u, one);
            if (i % 32 == 0) m.by_bit[(size_t)j * k.words + i / 32] = column;
            if (i < k.n && (j % 32 == 31 || j == k.r - 1)) m.by_row[(size_t)(j / 32) * k.n + i] = h, h = 0;
        }
    }
}

__device__ void unpack(const Sizes& k, const Memory& m, int w0, int w1) {
    for (int i = 32 * w0 + threadIdx.x; i < min(k.n, 32 * w1); i += THREADS)
        for (int j = 0; j < k.r; ++j)
            m.signs[(size_t)j * k.n + i] = m.by_row[(size_t)(j / 32) * k.n + i] >> j % 32 & 1 ? 0x3f80 : 0xbf80;
}

// z[label] += change for the labels of a row, in shared memory.
__device__ void add_labels(const Memory& m, int row, int change, int* z) {
    int g = m.group[row];
    if (!m.first) atomicAdd(z + g, change);
    else for (int i = m.first[g]; i < m.first[g + 1]; ++i) atomicAdd(z + m.of[i], change);
}

__device__ void flush(int* from, int* to, int count) {
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        int x = from[i];
        if (x) atomicAdd(to + i, x);
        from[i] = 0;
    }
    __syncthreads();
}

// Add this block's part of Hᵀb to u, and its part of 1ᵀb to u[r]. b must be up to date.
__device__ void count_against(const Sizes& k, const Memory& m, const word* b, int w0, int w1, int* u) {
    __syncthreads();
    int lane = threadIdx.x % 32;
    for (int j = threadIdx.x / 32; j <= k.r; j += WARPS) {
        const word* h = m.by_bit + (size_t)j * k.words;
        int ones = 0;
        if (j < k.r) {
#pragma unroll 8
            for (int w = w0 + lane; w < w1; w += 32) ones += __popc(h[w] ^ b[w]);
        } else {
            for (int w = w0 + lane; w < w1; w += 32) ones += __popc(b[w]);
        }
        ones = warp_sum(ones);
        int rows = min(k.n, 32 * w1) - min(k.n, 32 * w0);
        if (lane == 0) atomicAdd(u + j, j < k.r ? rows - 2 * ones : 2 * ones - rows);
    }
}

__device__ key_t_ key_of(double x) {
    whole bits = __double_as_longlong(x + 0.0);  // turns −0 into 0
    return bits < 0 ? ~(key_t_)bits : (key_t_)bits | 0x8000000000000000ull;
}

// Scores of this block's rows as keys; its parts of qᵀb and of the extreme scores.
__device__ void score(const Sizes& k, const Memory& m, int bit, const word* b, int w0, int w1, double b1,
                      const int* z, const int* table, Shared& s) {
    double qb = 0, ends[4] = {-INF, -INF, -INF, -INF};  // −smallest and largest, for rows with −1 and rows with 1
    int rows = min(k.n, 32 * w1);
    const LINEAR* q = m.q + (size_t)bit * k.n;
#pragma unroll 2
    for (int i = 32 * w0 + threadIdx.x; i < rows; i += THREADS) {
        whole Hu = 0;
        for (int j = 0; 32 * j < k.r; ++j) {
            word h = m.by_row[(size_t)j * k.n + i];
            const int* t = table + 128 * j;
#pragma unroll
            for (int c = 0; c < 8; ++c) Hu += t[16 * c + (h >> 4 * c & 15)];
        }
        int g = m.group[i], zs = 0;
        if (!m.first) zs = z[g];
        else for (int l = m.first[g]; l < m.first[g + 1]; ++l) zs += z[m.of[l]];
        bool one = b[i >> 5] >> (i & 31) & 1;
        double value = k.r * (k.w * zs - b1), d = m.diag[g], linear = q[i];
        double base = one ? 4 * (value - d) + k.lam : 4 * (value + d);
        double sim = base - (double)(4 * Hu) - linear;
        qb += one ? linear : -linear;
        ends[0] = fmax(ends[0], one ? -INF : -sim);
        ends[1] = fmax(ends[1], one ? -INF : sim);
        ends[2] = fmax(ends[2], one ? -sim : -INF);
        ends[3] = fmax(ends[3], one ? sim : -INF);
        m.keys[i] = key_of(sim);
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    qb = warp_sum(qb);
#pragma unroll
    for (int e = 0; e < 4; ++e) ends[e] = warp_max(ends[e]);
    __syncthreads();
    if (lane == 0) {
        s.reals[0][warp] = qb;
#pragma unroll
        for (int e = 0; e < 4; ++e) s.reals[e + 1][warp] = ends[e];
    }
    __syncthreads();
    for (int e = warp; e < 5; e += WARPS) {
        double x = lane < WARPS ? s.reals[e][lane] : e ? -INF : 0;
        x = e ? warp_max(x) : warp_sum(x);
        if (lane == 0) m.part[e * gridDim.x + blockIdx.x] = x;
    }
}

// Select the `need` largest keys between lo and hi. In the end these are the keys of at least `lo`; if `ties`, only
// the first `need` rows with a key equal to `lo`.
struct Chosen { key_t_ lo; int need; bool ties; };

__device__ Chosen choose(const Sizes& k, const Memory& m, int w0, int w1, key_t_ lo, key_t_ hi, int need, int& pass,
                         word& target, Shared& s) {
    int rows = min(k.n, 32 * w1);
    while (true) {
        int shift = lo == hi ? 0 : max(0, 64 - __clzll((whole)(hi - lo)) - __popc(BINS - 1));
        s.bins[threadIdx.x] = 0;
        __syncthreads();
        for (int start = 32 * w0 + threadIdx.x; start < rows; start += AHEAD * THREADS) {
            key_t_ x[AHEAD];
#pragma unroll
            for (int c = 0; c < AHEAD; ++c) x[c] = start + c * THREADS < rows ? m.keys[start + c * THREADS] : hi + 1;
#pragma unroll
            for (int c = 0; c < AHEAD; ++c)
                if (x[c] - lo <= hi - lo) atomicAdd(s.bins + (int)((x[c] - lo) >> shift), 1);
        }
        flush(s.bins, m.bins + pass % 3 * BINS, BINS);
        if (blockIdx.x == 0) m.bins[(pass + 1) % 3 * BINS + threadIdx.x] = 0;
        everybody(m, target);
        int bin = BINS - 1 - threadIdx.x, inside = fresh(m.bins + pass % 3 * BINS + bin), all;
        int above = block_scan(inside, all, s);
        if (above < need && need <= above + inside) {
            s.lo = lo + ((key_t_)bin << shift);
            s.need = need - above;
            s.inside = inside;
        }
        __syncthreads();
        lo = s.lo, need = s.need;
        bool whole_bin = s.inside == need;
        ++pass;
        __syncthreads();
        if (whole_bin || shift == 0) return {lo, need, !whole_bin};
        key_t_ last = lo + (((key_t_)1 << shift) - 1);
        hi = last < hi ? last : hi;
    }
}

// Set b to 1 on the selected rows, update z, and return how many of this block's rows changed.
__device__ int apply(const Sizes& k, const Memory& m, const word* b, int w0, int w1, Chosen c, int* z, word& target,
                     Shared& s) {
    int rows = min(k.n, 32 * w1), moved = 0, before = 0;
    if (c.ties) {  // number of ties in the blocks before this one
        whole mine = 0;
        for (int i = 32 * w0 + threadIdx.x; i < rows; i += THREADS) mine += m.keys[i] == c.lo;
        mine = block_sum(mine, s);
        if (threadIdx.x == 0) m.equal[blockIdx.x] = (int)mine;
        everybody(m, target);
        whole others = 0;
        for (int i = threadIdx.x; i < (int)blockIdx.x; i += THREADS) others += fresh(m.equal + i);
        before = (int)block_sum(others, s);
    }
    for (int start = 32 * w0; start < rows; start += THREADS) {
        int i = start + threadIdx.x;
        bool inside = i < rows;
        key_t_ x = inside ? m.keys[i] : 0;
        bool one = inside && x >= c.lo;
        if (c.ties) {
            int all, rank = before + block_scan(inside && x == c.lo, all, s);
            one = one && (x > c.lo || rank < c.need);
            before += all;
        }
        word old = inside ? b[i >> 5] : 0, now = __ballot_sync(~0u, one);
        bool was = inside && (old >> (i & 31) & 1);
        if (was != one) {
            add_labels(m, i, one ? 2 : -2, z);
            ++moved;
        }
        if (inside && i % 32 == 0) m.b[i >> 5] = now;
    }
    return (int)block_sum((whole)moved, s);
}

// Add the parts of all blocks, in the same order in every block; return how many rows moved.
__device__ void add_up(const Memory& m, bool moves, Shared& s) {
    int lane = threadIdx.x % 32;
    for (int e = threadIdx.x / 32; e < 6; e += WARPS) {
        double x = e ? -INF : 0;
        whole moved = 0;
        for (int i = lane; i < (int)gridDim.x; i += 32) {
            if (e == 5) moved += moves ? fresh(m.moved + i) : 0;
            else x = e ? fmax(x, fresh(m.part + e * gridDim.x + i)) : x + fresh(m.part + i);
        }
        x = e ? warp_max(x) : warp_sum(x);
        moved = warp_sum(moved);
        if (lane == 0) e == 5 ? (void)(s.moved = moved) : (void)(s.all[e] = x);
    }
    __syncthreads();
}

// Prepare shared memory for the scores: z, and H'u for all values of four bits. Returns 1ᵀb, ‖z‖², ‖u‖².
struct Totals { double b1, zz, uu; };

__device__ Totals gather(const Sizes& k, const Memory& m, int bit, const int* u_all, const int* z_all, int* z,
                         int* table, int* u, Shared& s) {
    whole zz = 0, uu = 0;
    for (int j = threadIdx.x; j <= k.r; j += THREADS) {
        whole x = u[j] = j == bit ? 0 : fresh(u_all + j);
        uu += j < k.r ? x * x : 0;
    }
    for (int l = threadIdx.x; l < k.labels; l += THREADS) {
        whole x = z[l] = fresh(z_all + l);
        zz += x * x;
    }
    block_sums(zz, uu, s);  // u is complete after this
    for (int e = threadIdx.x; e < 128 * ((k.r + 31) / 32); e += THREADS) {
        int sum = 0;
        for (int c = 0; c < 4; ++c) {
            int j = e / 16 * 4 + c, x = j < k.r ? u[j] : 0;
            sum += e >> c & 1 ? x : -x;
        }
        table[e] = sum;
    }
    __syncthreads();
    return {(double)u[k.r], (double)zz, (double)uu};
}

// The sums z and u of the initial column b.
__device__ void begin(const Sizes& k, const Memory& m, const word* b, int w0, int w1, int* z_here, int* z, int* u) {
    __syncthreads();
    for (int i = 32 * w0 + threadIdx.x; i < min(k.n, 32 * w1); i += THREADS)
        add_labels(m, i, b[i >> 5] >> (i & 31) & 1 ? 1 : -1, z_here);
    flush(z_here, z, k.labels);
    count_against(k, m, b, w0, w1, u);
}

// Clear the memory of the next sums: u; at the first step of a bit, z of the next bit; z of this block.
__device__ void clear(const Sizes& k, const Memory& m, int bit, int step, int* u_next, int* z_here) {
    if (blockIdx.x == 0) {
        for (int j = threadIdx.x; j <= k.r; j += THREADS) u_next[j] = 0;
        if (step == 0) for (int l = threadIdx.x; l < k.labels; l += THREADS) m.z[(~bit & 1) * k.labels + l] = 0;
    }
    for (int l = threadIdx.x; l < k.labels; l += THREADS) z_here[l] = 0;
}

// Write column b to H, by column and by row.
__device__ void write_back(const Sizes& k, const Memory& m, int bit, const word* b, int w0, int w1) {
    __syncthreads();
    for (int w = w0 + threadIdx.x; w < w1; w += THREADS) m.by_bit[(size_t)bit * k.words + w] = b[w];
    for (int i = 32 * w0 + threadIdx.x; i < min(k.n, 32 * w1); i += THREADS) {
        word *h = m.by_row + (size_t)(bit / 32) * k.n + i, mask = 1u << bit % 32;
        *h = b[i >> 5] >> (i & 31) & 1 ? *h | mask : *h & ~mask;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sweep(Sizes k, Memory m) {
    SHARED_MEMORY(Shared, s, int, room);  // room: z, a table of 16 sums per four bits, u
    int *z_here = room, *table = room + k.labels, *u_here = table + 128 * ((k.r + 31) / 32);
    int each = (k.words + gridDim.x - 1) / gridDim.x;
    int w0 = min(k.words, (int)blockIdx.x * each), w1 = min(k.words, w0 + each);
    word target = 0;
    int pass = 0, round = 0;
    whole steps = 0, flips = 0;
    for (int l = threadIdx.x; l < k.labels; l += THREADS) z_here[l] = 0;
    pack(k, m, w0, w1);
    for (int bit = 0; bit < k.r; ++bit) {
        const word* b = m.by_bit + (size_t)bit * k.words;
        int* z = m.z + (bit & 1) * k.labels;
        double g_kept = INF, hSh = 0, qh = 0;
        begin(k, m, b, w0, w1, z_here, z, m.u + (round & 1) * (k.r + 1));
        everybody(m, target);
        for (int step = 0;; ++step) {
            int *u = m.u + (round & 1) * (k.r + 1), *u_next = m.u + (~round & 1) * (k.r + 1);
            Totals t = gather(k, m, bit, u, z, z_here, table, u_here, s);
            score(k, m, bit, b, w0, w1, t.b1, z_here, table, s);
            clear(k, m, bit, step, u_next, z_here);  // the scores ended with a barrier
            ++round;
            everybody(m, target);
            add_up(m, step > 0, s);
            double bSb = k.w * t.zz - t.b1 * t.b1, qb = s.all[0];
            double g = -2 * (k.r * bSb - t.uu) + qb;
            double least[2] = {-s.all[1], -s.all[3]}, most[2] = {s.all[2], s.all[4]};
            whole moved = s.moved;
            if (!isfinite(g)) {
                if (blockIdx.x == 0 && threadIdx.x == 0) m.found[2] = bit + 1;
                return;
            }
            steps += moved > 0;
            bool worse = g > g_kept;
            if (worse) b = m.kept;  // worse than the previous column: take the step back
            if (worse) break;
            hSh = bSb, qh = qb, flips += moved;
            bool balanced = t.b1 == k.n % 2;  // an unbalanced column is not a solution to return to
            if (balanced) {
                g_kept = g;
                for (int w = w0 + threadIdx.x; w < w1; w += THREADS) m.kept[w] = b[w];
            }
            bool settled = balanced && least[1] > most[0];  // b is 1 on the largest scores already
            if (settled || step == k.max_steps || (step && !moved)) break;
            key_t_ lo = key_of(fmin(least[0], least[1])), hi = key_of(fmax(most[0], most[1]));
            Chosen c = choose(k, m, w0, w1, lo, hi, (k.n + 1) / 2, pass, target, s);
            int here = apply(k, m, b, w0, w1, c, z_here, target, s);
            if (threadIdx.x == 0) m.moved[blockIdx.x] = here;
            b = m.b;
            flush(z_here, z, k.labels);
            count_against(k, m, b, w0, w1, m.u + (round & 1) * (k.r + 1));
            everybody(m, target);
        }
        write_back(k, m, bit, b, w0, w1);
        if (blockIdx.x == 0 && threadIdx.x == 0) m.hSh[bit] = hSh, m.qh[bit] = qh;
    }
    __syncthreads();
    unpack(k, m, w0, w1);
    if (blockIdx.x == 0 && threadIdx.x == 0) m.found[0] = steps, m.found[1] = flips;
}
