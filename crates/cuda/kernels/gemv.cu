// gemv_<format>_r{1,2,4,8}: f32 activations times weights of one block format, for few rows.
//
//     out[row, col] = sum over k of x[row_ids[row], k] * w[experts[row]][col, k]
//
// Grid (ceil(n / (4 * COLS)), ceil(m / ROWS)); 128 threads; no shared memory. COLS is 2 for one or two
// rows, and 1 for more. With `experts`, ROWS is 1: every row names its own weights.
//
// A warp owns COLS columns and reads 256 elements of each at a time, 8 for each lane (lanes.cuh). Nothing is rounded before the f32
// products: weights are decoded to f32, activations are used as they are, whatever their magnitude.
// Rows of `x` are 16-byte aligned. Lanes add in a fixed order: equal inputs give equal bits.

#include "lanes.cuh"

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

// The lane's eight elements as f32, and where they are: the same places in every row.
template <class F>
DEVICE void load_floats(float (&w)[8], int (&places)[2], const u8* row, int at, int lane, int k) {
    Lane o;
    load_lane<F>(o, row, at, lane, k);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float byte = byte_plus(o.q[i / 4], i % 4);
        const Factors f = o.f[i / 4];
        w[i] = F::AFFINE ? fmaf(f.factor, byte - BIAS, -f.min) : f.factor * (byte - (BIAS + F::ZERO));
    }
    places[0] = o.at[0], places[1] = o.at[1];
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
    // The last elements of a row may be fewer than 256: only there a lane may have none.
    auto add = [&](int at, bool last) {
        int places[2];
        float w[COLS][8];
#pragma unroll
        for (int c = 0; c < COLS; c++) load_floats<F>(w[c], places, w_row[c], at, lane, args.k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int run = 0; run < 2; run++) {
                if (last && places[run] < 0) continue;
                const float4 a = *(const float4*)(x[r] + places[run]);
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const float* q = w[c] + 4 * run;
                    float sum = acc[r][c];
                    sum = fmaf(a.x, q[0], sum);
                    sum = fmaf(a.y, q[1], sum);
                    sum = fmaf(a.z, q[2], sum);
                    acc[r][c] = fmaf(a.w, q[3], sum);
                }
            }
        }
    };
    const int blocks = args.k / 256;
#pragma unroll(ROWS == 8 ? 1 : 2)
    for (int at = 0; at < blocks; at++) add(at, false);
    if (F::ELEMS < 256 && args.k % 256 != 0) add(blocks, true);
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
        KERNEL_NAME(gemv_, FORMAT_NAME, _r##ROWS)(const GemvArgs args) {                       \
        gemv<FORMAT, ROWS, COLS>(args);                                                         \
    }

GEMV(1, 2)
GEMV(2, 2)
GEMV(4, 1)
GEMV(8, 1)
