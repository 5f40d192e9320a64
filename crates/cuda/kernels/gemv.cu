// gemv_<format>_r{1,2,4,8}: f32 activations times weights of one block format, for few rows.
//
//     out[row, col] = sum over k of x[row_ids[row], k] * w[experts[row]][col, k]
//
// Grid (ceil(n / (4 * COLS)), ceil(m / ROWS)); 128 threads; no shared memory. COLS is 2 for one or two
// rows, and 1 for more. With `experts`, ROWS is 1: every row names its own weights.
//
// A warp owns COLS columns and reads 256 elements of each at a time, 8 for each lane, so that the raw
// bytes of a block and the activations are both read in whole lines. Nothing is rounded before the f32
// products: weights are decoded to f32, activations are used as they are, whatever their magnitude.
// Rows of `x` are 16-byte aligned. Lanes add in a fixed order: equal inputs give equal bits.

#include "dequant.cuh"

struct GemvArgs {
    const float* x;      // [.., x_stride]
    const u8* w;         // row 0 of expert 0
    float* out;          // [m, n]
    const int* experts;  // [m] or null: expert 0
    const int* row_ids;  // [m] or null: the same row
    i64 x_stride;        // elements, a multiple of 4
    i64 w_row_bytes;
    i64 w_expert_bytes;
    int m, n, k;
};

// Elements `at[run]` to `at[run] + 3` of a row, `w[4 * run ..]`.
struct Octet {
    float w[8];
    int at[2];
};

DEVICE u32 load_word(const u8* p) {
    u32 w[1];
    load_words(w, p);
    return w[0];
}

DEVICE void scaled_word(float* w, u32 q, float factor, float zero) {
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = factor * (byte_plus(q, i) - (BIAS + zero));
}

DEVICE void affine_word(float* w, u32 q, float factor, float min) {
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = fmaf(factor, byte_plus(q, i) - BIAS, -min);
}

// Part of `lane` in the 256 elements from `256 * at` on.
template <class F>
DEVICE void octet(Octet& o, const u8* row, int at, int lane, int k);

template <>
DEVICE void octet<Q4_K>(Octet& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * Q4_K::BYTES;
    u32 head[4];
    load_quad(head, block);
    const u32 q = *(const u32*)(block + 16 + 4 * lane);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        float factor, min;
        factor_min(head, lane / 8 * 2 + run, 1.0f, factor, min);
        affine_word(o.w + 4 * run, q >> 4 * run & 0x0f0f0f0fu, factor, min);
        o.at[run] = 256 * at + lane / 8 * 64 + 32 * run + lane % 8 * 4;
    }
}

template <>
DEVICE void octet<Q5_K>(Octet& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * Q5_K::BYTES;
    u32 head[4];
    load_quad(head, block);
    const u32 h = *(const u32*)(block + 16 + lane % 8 * 4);
    const u32 q = *(const u32*)(block + 48 + 4 * lane);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        const int g = lane / 8 * 2 + run;
        float factor, min;
        factor_min(head, g, 1.0f, factor, min);
        const u32 five = (q >> 4 * run & 0x0f0f0f0fu) | (h >> g & 0x01010101u) << 4;
        affine_word(o.w + 4 * run, five, factor, min);
        o.at[run] = 256 * at + lane / 8 * 64 + 32 * run + lane % 8 * 4;
    }
}

template <>
DEVICE void octet<Q6_K>(Octet& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * Q6_K::BYTES;
    const int half = lane / 16, b = lane % 16 * 4;
    const u32 l = load_word(block + 4 * lane);
    const u32 h = load_word(block + 128 + 32 * half + b % 32) >> b / 32 * 2;
    const float d = load_f16(block + 208);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        const int first = 128 * half + 64 * run + b;
        const u32 q = (l >> 4 * run & 0x0f0f0f0fu) | (h >> 4 * run & 0x03030303u) << 4;
        const float factor = d * (float)*(const i8*)(block + 192 + first / 16);
        scaled_word(o.w + 4 * run, q, factor, 32.0f);
        o.at[run] = 256 * at + first;
    }
}

// Block `index` of 32 elements if the row has it, and the first otherwise, with a factor of 0.
template <class F>
DEVICE const u8* block_of_32(const u8* row, int& index, int k, float& d) {
    const bool inside = 32 * index < k;
    index = inside ? index : 0;
    const u8* block = row + (i64)index * F::BYTES;
    const float stored = load_f16(block);
    d = inside ? stored : 0.0f;
    return block;
}

// A factor of 0 must also silence a block whose scale is not finite: its quants are still finite.
template <>
DEVICE void octet<Q8_0>(Octet& o, const u8* row, int at, int lane, int k) {
#pragma unroll
    for (int run = 0; run < 2; run++) {
        int index = 8 * at + 4 * run + lane / 8;
        float d;
        const u8* block = block_of_32<Q8_0>(row, index, k, d);
        const u32 q = load_word(block + 2 + lane % 8 * 4) ^ 0x80808080u;
        scaled_word(o.w + 4 * run, q, d, 128.0f);
        o.at[run] = 32 * index + lane % 8 * 4;
    }
}

template <>
DEVICE void octet<Q4_0>(Octet& o, const u8* row, int at, int lane, int k) {
    int index = 8 * at + lane / 4;
    float d;
    const u8* block = block_of_32<Q4_0>(row, index, k, d);
    const u32 q = load_word(block + 2 + lane % 4 * 4);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        scaled_word(o.w + 4 * run, q >> 4 * run & 0x0f0f0f0fu, d, 8.0f);
        o.at[run] = 32 * index + 16 * run + lane % 4 * 4;
    }
}

template <>
DEVICE void octet<Q5_0>(Octet& o, const u8* row, int at, int lane, int k) {
    int index = 8 * at + lane / 4;
    float d;
    const u8* block = block_of_32<Q5_0>(row, index, k, d);
    const u32 h = pack_halves(*(const u16*)(block + 2), *(const u16*)(block + 4));
    const u32 q = load_word(block + 6 + lane % 4 * 4);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        const u32 five = (q >> 4 * run & 0x0f0f0f0fu) | fifth_bits(h >> (16 * run + lane % 4 * 4));
        scaled_word(o.w + 4 * run, five, d, 16.0f);
        o.at[run] = 32 * index + 16 * run + lane % 4 * 4;
    }
}

template <>
DEVICE void octet<TQ2_0>(Octet& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * TQ2_0::BYTES;
    const int word = lane % 16;
    const u32 q = load_word(block + 4 * word) >> lane / 16 * 4;
    const float d = load_f16(block + 64);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        scaled_word(o.w + 4 * run, q >> 2 * run & 0x03030303u, d, 1.0f);
        o.at[run] = 256 * at + word / 8 * 128 + 32 * (lane / 16 * 2 + run) + word % 8 * 4;
    }
}

template <class F, int ROWS, int COLS>
DEVICE void gemv(const GemvArgs& args) {
    const int lane = threadIdx.x % 32;
    const int col = (blockIdx.x * 4 + threadIdx.x / 32) * COLS;
    if (col >= args.n) return;
    const int first = blockIdx.y * ROWS;
    const float* x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = min(first + r, args.m - 1);
        x[r] = args.x + (args.row_ids ? args.row_ids[row] : row) * args.x_stride;
    }
    const u8* w = args.w + (args.experts ? args.experts[first] : 0) * args.w_expert_bytes;
    const u8* w_row[COLS];
#pragma unroll
    for (int c = 0; c < COLS; c++) w_row[c] = w + min(col + c, args.n - 1) * args.w_row_bytes;

    float acc[ROWS][COLS] = {};
    const int blocks = (args.k + 255) / 256;
#pragma unroll(ROWS == 8 ? 1 : 2)
    for (int at = 0; at < blocks; at++) {
        Octet o[COLS];
#pragma unroll
        for (int c = 0; c < COLS; c++) octet<F>(o[c], w_row[c], at, lane, args.k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int run = 0; run < 2; run++) {
                const float4 a = *(const float4*)(x[r] + o[0].at[run]);
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const float* q = o[c].w + 4 * run;
                    float sum = acc[r][c];
                    sum = fmaf(a.x, q[0], sum);
                    sum = fmaf(a.y, q[1], sum);
                    sum = fmaf(a.z, q[2], sum);
                    acc[r][c] = fmaf(a.w, q[3], sum);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const float sum = warp_sum(acc[r][c]);
            if (lane == 0 && first + r < args.m && col + c < args.n)
                args.out[(i64)(first + r) * args.n + col + c] = sum;
        }
    }
}

#define GEMV(ROWS, COLS)                                                                        \
    extern "C" __global__ void __launch_bounds__(128, 1)                                        \
        FUCINA_NAME3(gemv_, FORMAT_NAME, _r##ROWS)(const GemvArgs args) {                       \
        gemv<FORMAT, ROWS, COLS>(args);                                                         \
    }

GEMV(1, 2)
GEMV(2, 2)
GEMV(4, 1)
GEMV(8, 1)
