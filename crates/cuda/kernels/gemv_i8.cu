// gemv_i8_<format>_r{1,2,4,8}: activations in 8 bits times weights of one block format, for few rows. See
// int8.cuh for the numbers and gemv.cu for the shape of the work: a warp owns COLS columns, 256 elements
// of each at a time, 8 for each lane; here four of them are one dp4a.
//
// Grid (ceil(n / (4 * COLS)), ceil(m / ROWS)); 128 threads; no shared memory. COLS is 2 for one or two
// rows, and 1 for more.

#include "int8.cuh"
#include "lanes.cuh"

struct GemvI8Args {
    const u32* x;               // whole numbers, [.., x_stride] bytes
    const BlockScale* x_scale;  // [.., x_stride / 32]
    const u8* w;                // row 0 of expert 0
    float* out;                 // [m, n]
    const int* experts;         // as in GemvArgs
    const int* row_ids;
    i64 w_row_bytes;
    i64 w_expert_bytes;
    int m, n, k;
    int x_stride;
};

template <class F, int ROWS, int COLS>
DEVICE void gemv(const GemvI8Args& args) {
    const int lane = threadIdx.x % 32;
    const int col = (blockIdx.x * 4 + threadIdx.x / 32) * COLS;
    if (col >= args.n) return;
    const int first = blockIdx.y * ROWS;
    i64 row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int at = min(first + r, args.m - 1);
        row[r] = args.row_ids ? args.row_ids[at] : at;
    }
    const u8* w = args.w + (args.experts ? args.experts[first] : 0) * args.w_expert_bytes;
    const u8* w_row[COLS];
#pragma unroll
    for (int c = 0; c < COLS; c++) w_row[c] = w + min(col + c, args.n - 1) * args.w_row_bytes;

    float acc[ROWS][COLS] = {};
    // The last elements of a row may be fewer than 256: only there a lane may have none.
    auto add = [&](int at, bool last) {
        Lane o[COLS];
#pragma unroll
        for (int c = 0; c < COLS; c++) load_lane<F>(o[c], w_row[c], at, lane, args.k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int run = 0; run < 2; run++) {
                const int place = o[0].at[run];
                if (last && place < 0) continue;
                const u32 x = args.x[(row[r] * args.x_stride + place) / 4];
                const float d = args.x_scale[(row[r] * args.x_stride + place) / 32].x;
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const int dot = dot_4(signed_bytes<F::ZERO>(o[c].q[run]), x, 0);
                    float y = o[c].f[run].factor * (float)dot;
                    if (F::AFFINE) y = fmaf(-o[c].f[run].min, (float)dot_4(0x01010101u, x, 0), y);
                    acc[r][c] = fmaf(d, y, acc[r][c]);
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
        KERNEL_NAME(gemv_i8_, FORMAT_NAME, _r##ROWS)(const GemvI8Args args) {                  \
        gemv<FORMAT, ROWS, COLS>(args);                                                         \
    }

GEMV(1, 2)
GEMV(2, 2)
GEMV(4, 1)
GEMV(8, 1)
