// gemm_<format>_m{16,32,64,128}: packed f16 activations times weights of one format, for chips from
// sm_80 on. See gemm.cuh for what is computed.
//
// Grid (row tiles, ceil(n / 64), splits); 128 threads; dynamic shared memory STAGES * BM * 128 + 16384
// bytes. Registers: docs/perf. The last block of rows and columns may be partial.
//
// A block computes BM x 64 outputs, a slab of 64 elements of k at a time. Activations go to shared memory
// by cp.async, STAGES - 1 slabs ahead. Weights go through registers: the raw bytes of slab i + 2 are
// loaded while slab i is multiplied, and decoded to f16 into one of two buffers when slab i + 1 begins.
// So there is one barrier for each slab. Rows of shared memory are 128 bytes; the 16-byte chunk c of row
// r lies at c ^ (r % 8), which spreads both the stores of the decoder and ldmatrix over all banks.

#include "gemm.cuh"

static const int BN = 64;
static const int THREADS = 128;
static const int W_BYTES = BN * 2 * SLAB;

// Address of chunk `chunk` of row `row`.
DEVICE u32 chunk_at(u32 base, int row, int chunk) {
    return base + row * (2 * SLAB) + ((chunk ^ (row & 7)) << 4);
}

template <class F>
DEVICE void store_unit(u32 base, const typename F::Raw& raw, int slab, int u, int col, float scale) {
#pragma unroll
    for (int run = 0; run < 2; run++) {
        float w[RUN];
        decode<F, false>(w, raw, slab, run, scale);
        u32 h[RUN / 2];
#pragma unroll
        for (int i = 0; i < RUN / 2; i++) h[i] = f32x2_to_f16x2(w[2 * i], w[2 * i + 1]);
        const int chunk = F::pos(u, run) / 8;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            store_shared_16(chunk_at(base, col, chunk + i), h[4 * i], h[4 * i + 1], h[4 * i + 2],
                            h[4 * i + 3]);
        }
    }
}

template <class F, int BM, int WARPS_M, int STAGES>
DEVICE void gemm(const GemmArgs& args) {
    const int WARPS_N = 4 / WARPS_M;
    const int WM = BM / WARPS_M, WN = BN / WARPS_N;
    const int MT = WM / 16, NT = WN / 16;
    const int X_BYTES = BM * 2 * SLAB;
    const int COPIES = BM * 8 / THREADS;  // chunks of a slab of activations for each thread
    DYNAMIC_SHARED(shared);

    const Work work = work_of<BM, BN>(args);
    if (work.rows <= 0) return;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const u32 x_base = shared_address(shared);
    const u32 w_base = x_base + STAGES * X_BYTES;
    const Pow2 w_pow2 = weight_pow2(args);

    const u8* x_from[COPIES];
    u32 x_to[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const int row = (tid + i * THREADS) / 8, chunk = tid % 8;
        x_from[i] = (const u8*)(args.x + packed_row(args, work, row) * args.x_stride) + 16 * chunk;
        x_to[i] = chunk_at(0, row, chunk);
    }
    auto copy_x = [&](int slab, int stage) {
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            copy_async_16(x_base + stage * X_BYTES + x_to[i], x_from[i] + slab * (2 * SLAB));
    };

    const int col = tid % BN, u = tid / BN;
    const u8* w_row = weight_row(args, work, col);
    typename F::Raw raw;

    float acc[MT][2 * NT][4] = {};
    const int slabs = work.slab_end - work.slab;
    if (slabs > 0) load_unit<F>(raw, w_row, work.slab, u, args.k);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < slabs) copy_x(work.slab + s, s);
        copy_async_commit();
    }
    if (slabs > 0) store_unit<F>(w_base, raw, work.slab, u, col, w_pow2.scale);
    if (slabs > 1) load_unit<F>(raw, w_row, work.slab + 1, u, args.k);

    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;
    const int a_row = warp_row + lane % 16, a_chunk = lane / 16;
    const int b_row = warp_col + lane % 8 + lane / 16 * 8, b_chunk = lane / 8 % 2;
    int stage = 0;
    for (int i = 0; i < slabs; i++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        const int ahead = i + STAGES - 1;
        if (ahead < slabs) copy_x(work.slab + ahead, stage == 0 ? STAGES - 1 : stage - 1);
        copy_async_commit();
        if (i + 1 < slabs)
            store_unit<F>(w_base + (i + 1) % 2 * W_BYTES, raw, work.slab + i + 1, u, col, w_pow2.scale);
        if (i + 2 < slabs) load_unit<F>(raw, w_row, work.slab + i + 2, u, args.k);

        const u32 x_tile = x_base + stage * X_BYTES, w_tile = w_base + i % 2 * W_BYTES;
#pragma unroll
        for (int step = 0; step < SLAB / 16; step++) {
            u32 a[MT][4], b[NT][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
                ldmatrix_x4(a[t], chunk_at(x_tile, a_row + 16 * t, 2 * step + a_chunk));
#pragma unroll
            for (int t = 0; t < NT; t++)
                ldmatrix_x4(b[t], chunk_at(w_tile, b_row + 16 * t, 2 * step + b_chunk));
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int c = 0; c < 2 * NT; c++)
                    mma_f16(acc[t][c], a[t], b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    float* out = args.out + blockIdx.z * args.plane;
#pragma unroll
    for (int t = 0; t < MT; t++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = warp_row + 16 * t + 8 * half + lane / 4;
            if (r >= work.rows) continue;
            const float x_scale = args.x_scale[packed_row(args, work, r)];
            float* row = out + (i64)(work.first + r) * args.n;
#pragma unroll
            for (int c = 0; c < 2 * NT; c++) {
                const int n = work.col + warp_col + 8 * c + lane % 4 * 2;
                const float y0 = unscaled(acc[t][c][2 * half], x_scale, w_pow2.inverse);
                const float y1 = unscaled(acc[t][c][2 * half + 1], x_scale, w_pow2.inverse);
                if (args.n % 2 == 0) {
                    if (n < args.n) *(float2*)(row + n) = make_float2(y0, y1);
                } else {
                    if (n < args.n) row[n] = y0;
                    if (n + 1 < args.n) row[n + 1] = y1;
                }
            }
        }
    }
}

#define GEMM(BM, WARPS_M, STAGES)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                       \
        KERNEL_NAME(gemm_, FORMAT_NAME, _m##BM)(const GemmArgs args) {                         \
        gemm<FORMAT, BM, WARPS_M, STAGES>(args);                                                \
    }

GEMM(16, 1, 4)
GEMM(32, 1, 4)
GEMM(64, 2, 3)
GEMM(128, 2, 3)
