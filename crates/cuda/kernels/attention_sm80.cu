// attention_mma_f16_d{64,128,256}: prefill attention on tensor cores, f16 keys and values. See
// attention.cuh for what is computed.
//
// Grid (ceil(t * group / 64), kv heads, splits); 128 threads; dynamic shared memory 24576, 49152 and 65536
// bytes. d and dv are multiples of 8 up to the kernel's size; keys and values, and all their rows, start at
// multiples of 16 bytes.
//
// A warp owns 16 rows. Queries are scaled to f16 by a power of two for each row, which is undone on the
// f32 scores, so their range does not matter; weights lie between 0 and 1 and go to f16, too. Scores, sums
// and outputs are f32. The keys of the next tile are fetched while the values of this one are used, and
// the values while the scores are computed. Shared memory is laid out as in gemm_sm80.cu: chunk c of
// row r lies at c ^ (r % 8). The tile of weights never leaves the registers: the layout of a sum is that
// of the left operand of the next product.
//
// A value that is not finite spreads to the rows of its tile of 64 that do not see its key: 0 * x is NaN.

#include "attention.cuh"

static const float LOG2_E = 1.4426950408889634f;

template <int D>
DEVICE u32 chunk_at(u32 base, int row, int chunk) {
    return base + row * (2 * D) + ((chunk ^ (row & 7)) << 4);
}

// Fetches rows `first ..` of one operand; zeros past `end` and past `width`.
template <int D, int KEYS>
DEVICE void fetch(u32 base, const u16* from, i64 stride, int first, int end, int width) {
#pragma unroll
    for (int i = 0; i < KEYS * D / 8 / 128; i++) {
        const int at = threadIdx.x + 128 * i, row = at / (D / 8), chunk = at % (D / 8);
        const u32 to = chunk_at<D>(base, row, chunk);
        if (first + row < end && 8 * chunk < width) {
            copy_async_16(to, from + (first + row) * stride + 8 * chunk);
        } else {
            store_shared_16(to, 0, 0, 0, 0);
        }
    }
}

// Rows `row0 ..` of the queries of this warp, to f16. Returns in `factor` what turns the products of
// the lane's two rows into scores.
template <int D>
DEVICE void load_queries(u32 base, float (&factor)[2], const AttentionArgs& args, int row0, int rows) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = 0; i < 16; i++) {
        const int row = min(row0 + 16 * warp + i, rows - 1);
        const int head = blockIdx.y * args.group + row % args.group;
        const float* q = args.q + row / args.group * args.q_strides[0] + head * args.q_strides[1];
        float x[D / 32];
        u32 largest = 0;
#pragma unroll
        for (int e = 0; e < D / 64; e++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int at = 64 * e + 2 * lane + c;
                x[2 * e + c] = at < args.d ? q[at] : 0.0f;
                largest = max(largest, finite_magnitude_bits(x[2 * e + c]));
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        const Pow2 p = pow2_of(largest);
#pragma unroll
        for (int e = 0; e < D / 64; e++) {
            const u32 to = chunk_at<D>(base, 16 * warp + i, 8 * e + lane / 4) + lane % 4 * 4;
            store_shared_4(to, f32x2_to_f16x2(x[2 * e] * p.scale, x[2 * e + 1] * p.scale));
        }
        if (lane / 4 == i) factor[0] = p.inverse * args.scale;
        if (lane / 4 + 8 == i) factor[1] = p.inverse * args.scale;
    }
}

template <int D, int KEYS>
DEVICE void attention(const AttentionArgs& args) {
    const int ROWS = 64, NS = KEYS / 8, NO = D / 8;
    DYNAMIC_SHARED(shared);
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const u32 q_tile = shared_address(shared);
    const u32 k_tile = q_tile + ROWS * D * 2, v_tile = k_tile + KEYS * D * 2;
    const int rows = args.t * args.group, row0 = blockIdx.x * ROWS;
    const int last = min(row0 + ROWS, rows) - 1;
    const Range keys = part_of(visible_to(args, row0 / args.group, last / args.group), KEYS);
    const u16* k = (const u16*)args.k + blockIdx.y * args.k_strides[1];
    const u16* v = (const u16*)args.v + blockIdx.y * args.v_strides[1];

    if (keys.start < keys.end) fetch<D, KEYS>(k_tile, k, args.k_strides[0], keys.start, keys.end, args.d);
    copy_async_commit();
    float factor[2] = {};
    load_queries<D>(q_tile, factor, args, row0, rows);

    Range mine[2];
    float largest[2], sum[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = min(row0 + 16 * warp + lane / 4 + 8 * half, rows - 1);
        mine[half] = visible(args, row / args.group);
        mine[half].end = min(mine[half].end, keys.end);
        largest[half] = minus_infinity();
    }
    float acc[NO][4] = {};
    const int a_row = 16 * warp + lane % 16, a_chunk = lane / 16;
    const int k_row = lane % 8 + lane / 16 * 8, k_chunk = lane / 8 % 2;
    const int v_row = lane % 16, v_chunk = lane / 16;

    for (int first = keys.start; first < keys.end; first += KEYS) {
        copy_async_wait<0>();
        __syncthreads();
        fetch<D, KEYS>(v_tile, v, args.v_strides[0], first, keys.end, args.dv);
        copy_async_commit();

        float score[NS][4] = {};
#pragma unroll(D == 256 ? 1 : D / 16)
        for (int step = 0; step < D / 16; step++) {
            u32 a[4];
            ldmatrix_x4(a, chunk_at<D>(q_tile, a_row, 2 * step + a_chunk));
#pragma unroll
            for (int c = 0; c < NS / 2; c++) {
                u32 b[4];
                ldmatrix_x4(b, chunk_at<D>(k_tile, 16 * c + k_row, 2 * step + k_chunk));
                mma_f16(score[2 * c], a, b[0], b[1]);
                mma_f16(score[2 * c + 1], a, b[2], b[3]);
            }
        }
        u32 weights[NS][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = largest[half];
#pragma unroll
            for (int c = 0; c < NS; c++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& x = score[c][2 * half + e];
                    const int j = first + 8 * c + lane % 4 * 2 + e;
                    x = cap_score(args, x * factor[half]);
                    if (j < mine[half].start || j >= mine[half].end) x = minus_infinity();
                    top = fmaxf(top, x);
                }
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            // Nothing seen so far: any finite number will do.
            const float base = top == minus_infinity() ? 0.0f : top;
            const float shrink = exp2f((largest[half] - base) * LOG2_E);
            largest[half] = top;
            sum[half] *= shrink;
#pragma unroll
            for (int c = 0; c < NS; c++) {
                const float w0 = exp2f((score[c][2 * half] - base) * LOG2_E);
                const float w1 = exp2f((score[c][2 * half + 1] - base) * LOG2_E);
                sum[half] += w0 + w1;
                weights[c][half] = f32x2_to_f16x2(w0, w1);
            }
#pragma unroll
            for (int c = 0; c < NO; c++) acc[c][2 * half] *= shrink, acc[c][2 * half + 1] *= shrink;
        }
        copy_async_wait<0>();
        __syncthreads();
        if (first + KEYS < keys.end)
            fetch<D, KEYS>(k_tile, k, args.k_strides[0], first + KEYS, keys.end, args.d);
        copy_async_commit();
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            const u32 a[4] = {weights[2 * step][0], weights[2 * step][1], weights[2 * step + 1][0],
                              weights[2 * step + 1][1]};
#pragma unroll
            for (int c = 0; c < NO / 2; c++) {
                u32 b[4];
                ldmatrix_x4_trans(b, chunk_at<D>(v_tile, 16 * step + v_row, 2 * c + v_chunk));
                mma_f16(acc[2 * c], a, b[0], b[1]);
                mma_f16(acc[2 * c + 1], a, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const int row = row0 + 16 * warp + lane / 4 + 8 * half;
        if (row >= rows) continue;
        const int head = blockIdx.y * args.group + row % args.group;
        const i64 at = ((i64)blockIdx.z * args.t + row / args.group) * args.heads + head;
        float last_factor = 1.0f;
        if (!args.max_sum) last_factor = total == 0.0f ? 0.0f : 1.0f / total;
        if (args.max_sum && lane % 4 == 0) {
            args.max_sum[2 * at] = largest[half];
            args.max_sum[2 * at + 1] = total;
        }
        float* out = args.out + at * args.dv + lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < NO; c++) {
            if (8 * c + lane % 4 * 2 >= args.dv) continue;
            const float y0 = acc[c][2 * half] * last_factor, y1 = acc[c][2 * half + 1] * last_factor;
            *(float2*)(out + 8 * c) = make_float2(y0, y1);
        }
    }
}

#define ATTENTION(D, KEYS)                                                                      \
    extern "C" __global__ void __launch_bounds__(128, 1)                                        \
        attention_mma_f16_d##D(const AttentionArgs args) {                                      \
        attention<D, KEYS>(args);                                                               \
    }

ATTENTION(64, 64)
ATTENTION(128, 64)
ATTENTION(256, 32)
