// Attention in f32 arithmetic, for f32 and f16 keys and values. See attention.cuh for what is computed.
//
// attention_<kv>_d{64,128,256}: head sizes up to that. Grid (row tiles, kv heads, splits), 256 threads.
//   A tile has 32 rows (16 for d256) and 32 keys (16); eight (sixteen) threads share a row: they hold its
//   scores of a tile and own a part of its output. Shared memory: docs/perf.
// attention_decode_<kv>_d{64,128,256}_r{1,4}: for few rows. Grid (ceil(rows / r), kv heads, splits),
//   128 threads. d / 16 lanes share a key, so a warp takes 2 to 8 keys at a time, with 16-byte loads;
//   every such group of lanes keeps a softmax of its own, and the block joins them at the end. d and dv
//   are multiples of 4 (f32) or 8 (f16), and rows of q, k and v start at multiples of 16 bytes.
// attention_combine: joins the splits. Grid (t * heads), 128 threads.
//
// A row that sees no key gives zeros. Keys that a row does not see are not looked at, whatever they hold.

#include "attention.cuh"

// Where a row is in `q` and in the output.
struct RowPlace {
    int query, head;
};

DEVICE RowPlace row_place(const AttentionArgs& args, int row) {
    RowPlace place = {row / args.group, (int)blockIdx.y * args.group + row % args.group};
    return place;
}

// Number of a row in the output, over all splits.
DEVICE i64 out_row(const AttentionArgs& args, RowPlace place) {
    return ((i64)blockIdx.z * args.t + place.query) * args.heads + place.head;
}

template <class E, int D, int ROWS, int KEYS>
DEVICE void attention(const AttentionArgs& args) {
    const int LANES = 256 / ROWS;     // threads of a row
    const int OWN = D / LANES / 4;    // quarters of four outputs of a thread
    const int SCORES = KEYS / LANES;  // scores of a thread
    const int LD = D + 4;
    __shared__ __align__(16) float q_tile[ROWS * LD];
    __shared__ __align__(16) float kv_tile[KEYS * LD];
    __shared__ float weights[ROWS * (KEYS + 1)];
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int rows = args.t * args.group, row0 = blockIdx.x * ROWS;
    const int r = tid / LANES, part = tid % LANES;

    for (int i = warp; i < ROWS; i += 8) {
        const RowPlace place = row_place(args, min(row0 + i, rows - 1));
        const float* q = args.q + place.query * args.q_strides[0] + place.head * args.q_strides[1];
        for (int e = lane; e < D; e += 32) q_tile[i * LD + e] = e < args.d ? q[e] * args.scale : 0.0f;
    }
    const int last = min(row0 + ROWS, rows) - 1;
    const Range keys = part_of(visible_to(args, row0 / args.group, last / args.group), KEYS);
    const RowPlace place = row_place(args, min(row0 + r, rows - 1));
    const Range mine = visible(args, place.query);
    const typename E::T* k = (const typename E::T*)args.k + blockIdx.y * args.k_strides[1];
    const typename E::T* v = (const typename E::T*)args.v + blockIdx.y * args.v_strides[1];

    float largest = minus_infinity(), sum = 0.0f;
    float acc[OWN][4] = {};
    for (int first = keys.start; first < keys.end; first += KEYS) {
        __syncthreads();
        for (int c = warp; c < KEYS; c += 8) {
            const bool inside = first + c < keys.end;
            for (int e = lane; e < D; e += 32)
                kv_tile[c * LD + e] =
                    inside && e < args.d ? E::get(k[(first + c) * args.k_strides[0] + e]) : 0.0f;
        }
        __syncthreads();
        float score[SCORES] = {};
#pragma unroll 4
        for (int e = 0; e < D; e += 4) {
            const float4 a = *(const float4*)(q_tile + r * LD + e);
#pragma unroll
            for (int c = 0; c < SCORES; c++) {
                const float4 b = *(const float4*)(kv_tile + (part + c * LANES) * LD + e);
                score[c] = fmaf(a.x, b.x, score[c]);
                score[c] = fmaf(a.y, b.y, score[c]);
                score[c] = fmaf(a.z, b.z, score[c]);
                score[c] = fmaf(a.w, b.w, score[c]);
            }
        }
        float top = largest;
#pragma unroll
        for (int c = 0; c < SCORES; c++) {
            const int j = first + part + c * LANES;
            const bool seen = j >= mine.start && j < mine.end && j < keys.end;
            score[c] = seen ? cap_score(args, score[c]) : minus_infinity();
            top = fmaxf(top, score[c]);
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        // Nothing seen so far: any finite number will do.
        const float base = top == minus_infinity() ? 0.0f : top;
        const float shrink = expf(largest - base);
        largest = top;
        sum *= shrink;
#pragma unroll
        for (int c = 0; c < SCORES; c++) {
            const float weight = expf(score[c] - base);
            sum += weight;
            weights[r * (KEYS + 1) + part + c * LANES] = weight;
        }
        __syncthreads();
        for (int c = warp; c < KEYS; c += 8) {
            const bool inside = first + c < keys.end;
            for (int e = lane; e < D; e += 32)
                kv_tile[c * LD + e] =
                    inside && e < args.dv ? E::get(v[(first + c) * args.v_strides[0] + e]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int o = 0; o < OWN; o++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[o][e] *= shrink;
        const int start = max(mine.start - first, 0);
        const int end = min(min(mine.end, keys.end) - first, KEYS);
        for (int c = start; c < end; c++) {
            const float weight = weights[r * (KEYS + 1) + c];
#pragma unroll
            for (int o = 0; o < OWN; o++) {
                const float4 b = *(const float4*)(kv_tile + c * LD + 4 * (part + o * LANES));
                acc[o][0] = fmaf(weight, b.x, acc[o][0]);
                acc[o][1] = fmaf(weight, b.y, acc[o][1]);
                acc[o][2] = fmaf(weight, b.z, acc[o][2]);
                acc[o][3] = fmaf(weight, b.w, acc[o][3]);
            }
        }
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (row0 + r >= rows) return;
    const i64 row = out_row(args, place);
    float factor = 1.0f;
    if (!args.max_sum) factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    if (args.max_sum && part == 0) {
        args.max_sum[2 * row] = largest;
        args.max_sum[2 * row + 1] = sum;
    }
#pragma unroll
    for (int o = 0; o < OWN; o++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = 4 * (part + o * LANES) + e;
            if (at < args.dv) args.out[row * args.dv + at] = acc[o][e] * factor;
        }
}

// Elements `16 * part` to `16 * part + 15` of a row of `d`; zeros past its end.
DEVICE void load_part(float (&x)[16], const float* row, int part, int d) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 q = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (16 * part + 4 * i < d) q = *(const float4*)(row + 16 * part + 4 * i);
        x[4 * i] = q.x, x[4 * i + 1] = q.y, x[4 * i + 2] = q.z, x[4 * i + 3] = q.w;
    }
}

DEVICE void load_part(float (&x)[16], const u16* row, int part, int d) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 q = make_uint4(0, 0, 0, 0);
        if (16 * part + 8 * i < d) q = *(const uint4*)(row + 16 * part + 8 * i);
        const u32 words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int e = 0; e < 8; e++) x[8 * i + e] = f16_to_f32((u16)(words[e / 2] >> 16 * (e % 2)));
    }
}

// Factor that brings exponentials taken from `from` to the base `to`.
DEVICE float rebase(float from, float to) { return from == minus_infinity() ? 0.0f : expf(from - to); }

template <class E, int D, int ROWS>
DEVICE void attention_decode(const AttentionArgs& args) {
    const int LANES = D / 16;        // of a key
    const int SLOTS = 32 / LANES;    // keys of a warp
    __shared__ float joined[4 * SLOTS][ROWS][D + 2];
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int part = lane % LANES, slot = lane / LANES;
    const int rows = args.t * args.group, row0 = blockIdx.x * ROWS;

    float q[ROWS][16], acc[ROWS][16] = {}, largest[ROWS], sum[ROWS] = {};
    Range mine[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const RowPlace place = row_place(args, min(row0 + r, rows - 1));
        load_part(q[r], args.q + place.query * args.q_strides[0] + place.head * args.q_strides[1], part,
                  args.d);
#pragma unroll
        for (int e = 0; e < 16; e++) q[r][e] *= args.scale;
        largest[r] = minus_infinity();
        mine[r] = visible(args, place.query);
    }
    const int last = min(row0 + ROWS, rows) - 1;
    const Range keys = part_of(visible_to(args, row0 / args.group, last / args.group), 4 * SLOTS);
    const typename E::T* k = (const typename E::T*)args.k + blockIdx.y * args.k_strides[1];
    const typename E::T* v = (const typename E::T*)args.v + blockIdx.y * args.v_strides[1];

    for (int first = keys.start; first < keys.end; first += 4 * SLOTS) {
        const int j = first + warp * SLOTS + slot;
        const int inside = min(j, keys.end - 1);
        float key[16], value[16];
        load_part(key, k + inside * args.k_strides[0], part, args.d);
        load_part(value, v + inside * args.v_strides[0], part, args.dv);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float score = 0.0f;
#pragma unroll
            for (int e = 0; e < 16; e++) score = fmaf(q[r][e], key[e], score);
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2)
                score += __shfl_xor_sync(0xffffffffu, score, step);
            if (j >= keys.end || j < mine[r].start || j >= mine[r].end) continue;
            score = cap_score(args, score);
            const float top = fmaxf(largest[r], score);
            const float base = top == minus_infinity() ? 0.0f : top;
            const float shrink = rebase(largest[r], top), weight = expf(score - base);
            largest[r] = top;
            sum[r] = fmaf(sum[r], shrink, weight);
#pragma unroll
            for (int e = 0; e < 16; e++) acc[r][e] = fmaf(acc[r][e], shrink, weight * value[e]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float* mine = joined[warp * SLOTS + slot][r];
#pragma unroll
        for (int e = 0; e < 16; e++) mine[16 * part + e] = acc[r][e];
        if (part == 0) mine[D] = largest[r], mine[D + 1] = sum[r];
    }
    __syncthreads();
    for (int r = 0; r < ROWS && row0 + r < rows; r++) {
        const i64 row = out_row(args, row_place(args, row0 + r));
        float top = minus_infinity(), total = 0.0f;
        for (int g = 0; g < 4 * SLOTS; g++) top = fmaxf(top, joined[g][r][D]);
        for (int g = 0; g < 4 * SLOTS; g++)
            total = fmaf(joined[g][r][D + 1], rebase(joined[g][r][D], top), total);
        float factor = 1.0f;
        if (!args.max_sum) factor = total == 0.0f ? 0.0f : 1.0f / total;
        if (args.max_sum && tid == 0) args.max_sum[2 * row] = top, args.max_sum[2 * row + 1] = total;
        for (int e = tid; e < args.dv; e += 128) {
            float x = 0.0f;
            for (int g = 0; g < 4 * SLOTS; g++)
                x = fmaf(joined[g][r][e], rebase(joined[g][r][D], top), x);
            args.out[row * args.dv + e] = x * factor;
        }
    }
}

struct CombineArgs {
    const float* parts;    // [splits, rows, dv]
    const float* max_sum;  // [splits, rows, 2]
    float* out;            // [rows, dv]
    i64 rows;
    int splits, dv;
};

extern "C" __global__ void __launch_bounds__(128, 1) attention_combine(const CombineArgs args) {
    const i64 row = blockIdx.x;
    float top = minus_infinity(), total = 0.0f;
    for (int s = 0; s < args.splits; s++) top = fmaxf(top, args.max_sum[2 * (s * args.rows + row)]);
    for (int s = 0; s < args.splits; s++) {
        const float* pair = args.max_sum + 2 * (s * args.rows + row);
        total = fmaf(pair[1], rebase(pair[0], top), total);
    }
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;
    for (int e = threadIdx.x; e < args.dv; e += 128) {
        float x = 0.0f;
        for (int s = 0; s < args.splits; s++) {
            const float weight = rebase(args.max_sum[2 * (s * args.rows + row)], top);
            x = fmaf(args.parts[(s * args.rows + row) * args.dv + e], weight, x);
        }
        args.out[row * args.dv + e] = x * factor;
    }
}

#define ATTENTION(E, NAME, D, ROWS, KEYS)                                                       \
    extern "C" __global__ void __launch_bounds__(256, 1)                                           \
        attention_##NAME##_d##D(const AttentionArgs args) {                                     \
        attention<E, D, ROWS, KEYS>(args);                                                      \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(128, 1)                                           \
        attention_decode_##NAME##_d##D##_r1(const AttentionArgs args) {                         \
        attention_decode<E, D, 1>(args);                                                        \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(128, 1)                                           \
        attention_decode_##NAME##_d##D##_r4(const AttentionArgs args) {                         \
        attention_decode<E, D, 4>(args);                                                        \
    }

ATTENTION(KeyF32, f32, 64, 32, 32)
ATTENTION(KeyF32, f32, 128, 32, 32)
ATTENTION(KeyF32, f32, 256, 16, 16)
ATTENTION(KeyF16, f16, 64, 32, 32)
ATTENTION(KeyF16, f16, 128, 32, 32)
ATTENTION(KeyF16, f16, 256, 16, 16)
