// gemm_<format>_m{32,64}: packed f16 activations times weights of one format, for every chip from sm_70
// on. See gemm.cuh for what is computed. And gemm_<format>_scalar, which multiplies plain f32.
//
// gemm_<format>_m<BM>: grid (row tiles, ceil(n / 64), splits); 128 threads; shared memory
// (BM + 64) * 144 bytes. A block computes BM x 64 outputs, a slab of 64 elements of k at a time; the next
// slab is loaded into registers while one is multiplied. Rows of shared memory are padded to 144 bytes,
// so that eight consecutive rows start in different banks. The sums go through shared memory, where the
// tile is no longer needed: the lanes' shares of a WMMA tile are opaque, and rows have their own scales.
//
// gemm_<format>_scalar: same grid with 64-row tiles; 256 threads; 34816 bytes of shared memory. Its
// activations are f32 (`x` is their address, `x_stride` counts f32, `x_scale` is not used), nothing is
// rounded to f16: a diagnostic, and the fallback without tensor cores.

#include "gemm.cuh"

static const int BN = 64;

// Plain f32 has no place on tensor cores: for it only the fallback is compiled.
#ifndef SCALAR_ONLY

static const int LD = SLAB + 8;
static const int THREADS = 128;

template <class F>
DEVICE void store_unit(u16* w_tile, const typename F::Raw& raw, int slab, int u, int col, float scale) {
#pragma unroll
    for (int run = 0; run < 2; run++) {
        float w[RUN];
        decode<F, false>(w, raw, slab, run, scale);
        uint4* to = (uint4*)(w_tile + col * LD + F::pos(u, run));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 q;
            q.x = f32x2_to_f16x2(w[8 * i], w[8 * i + 1]);
            q.y = f32x2_to_f16x2(w[8 * i + 2], w[8 * i + 3]);
            q.z = f32x2_to_f16x2(w[8 * i + 4], w[8 * i + 5]);
            q.w = f32x2_to_f16x2(w[8 * i + 6], w[8 * i + 7]);
            to[i] = q;
        }
    }
}

template <class F, int BM, int WARPS_M>
DEVICE void gemm(const GemmArgs& args) {
    const int WARPS_N = 4 / WARPS_M;
    const int WM = BM / WARPS_M, WN = BN / WARPS_N;
    const int MT = WM / 16, NT = WN / 16;
    const int COPIES = BM * 8 / THREADS;
    __shared__ __align__(128) u16 shared[(BM + BN) * LD];
    u16* const x_tile = shared;
    u16* const w_tile = shared + BM * LD;

    const Work work = work_of<BM, BN>(args);
    if (work.rows <= 0) return;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const Pow2 w_pow2 = weight_pow2(args);

    const uint4* x_from[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const int row = (tid + i * THREADS) / 8;
        x_from[i] = (const uint4*)(args.x + packed_row(args, work, row) * args.x_stride) + tid % 8;
    }
    const int col = tid % BN, u = tid / BN;
    const u8* w_row = weight_row(args, work, col);
    typename F::Raw raw;
    uint4 x[COPIES];
    auto load = [&](int slab) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) x[i] = x_from[i][slab * (SLAB / 8)];
        load_unit<F>(raw, w_row, slab, u, args.k);
    };

    WmmaAcc acc[MT][NT] = {};
    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;
    if (work.slab < work.slab_end) load(work.slab);
    for (int slab = work.slab; slab < work.slab_end; slab++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            *(uint4*)(x_tile + (tid + i * THREADS) / 8 * LD + tid % 8 * 8) = x[i];
        store_unit<F>(w_tile, raw, slab, u, col, w_pow2.scale);
        __syncthreads();
        if (slab + 1 < work.slab_end) load(slab + 1);
#pragma unroll
        for (int step = 0; step < SLAB / 16; step++) {
            WmmaHalf a[MT], b[NT];
#pragma unroll
            for (int t = 0; t < MT; t++)
                wmma_load_a(a[t], shared_address(x_tile + (warp_row + 16 * t) * LD + 16 * step), LD);
#pragma unroll
            for (int t = 0; t < NT; t++)
                wmma_load_b(b[t], shared_address(w_tile + (warp_col + 16 * t) * LD + 16 * step), LD);
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int c = 0; c < NT; c++) wmma_mma(acc[t][c], a[t], b[c]);
        }
    }

    // The tile of sums, [BM, 64], fits over both tiles of operands: BM * 256 <= (BM + 64) * 144.
    float* const sums = (float*)shared;
    __syncthreads();
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int c = 0; c < NT; c++)
            wmma_store(shared_address(sums + (warp_row + 16 * t) * BN + warp_col + 16 * c), acc[t][c], BN);
    __syncthreads();
    float* out = args.out + blockIdx.z * args.plane;
    for (int r = warp; r < work.rows; r += 4) {
        const float x_scale = args.x_scale[packed_row(args, work, r)];
        float* row = out + (i64)(work.first + r) * args.n + work.col;
#pragma unroll
        for (int c = lane; c < BN; c += 32)
            if (work.col + c < args.n) row[c] = unscaled(sums[r * BN + c], x_scale, w_pow2.inverse);
    }
}

#define GEMM(BM, WARPS_M)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                       \
        KERNEL_NAME(gemm_, FORMAT_NAME, _m##BM)(const GemmArgs args) {                         \
        gemm<FORMAT, BM, WARPS_M>(args);                                                        \
    }

GEMM(32, 1)
GEMM(64, 2)

#endif

// Tiles are stored with k as the slow axis, rows of 68 floats. Thread (i, j) of 16 x 16 owns rows
// 4i..4i+3 and columns 4j..4j+3.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL_NAME(gemm_, FORMAT_NAME, _scalar)(const GemmArgs args) {
    const int BM = 64, TILE_LD = 68;
    __shared__ __align__(16) float x_tile[SLAB * TILE_LD];
    __shared__ __align__(16) float w_tile[SLAB * TILE_LD];
    const Work work = work_of<BM, BN>(args);
    if (work.rows <= 0) return;
    const int tid = threadIdx.x, i = tid / 16, j = tid % 16;
    const float* x_rows = (const float*)args.x;
    // Half of the threads decode weights, the others copy activations: a row's half each.
    const int line = tid % 64, u = tid / 64 % 2;
    const u8* w_row = weight_row(args, work, line);
    const float* x_row = x_rows + packed_row(args, work, line) * args.x_stride;

    float acc[4][4] = {};
    for (int slab = work.slab; slab < work.slab_end; slab++) {
        __syncthreads();
        if (tid < 128) {
            typename FORMAT::Raw raw;
            load_unit<FORMAT>(raw, w_row, slab, u, args.k);
#pragma unroll
            for (int run = 0; run < 2; run++) {
                float w[RUN];
                decode<FORMAT, false>(w, raw, slab, run, 1.0f);
#pragma unroll
                for (int e = 0; e < RUN; e++) w_tile[(FORMAT::pos(u, run) + e) * TILE_LD + line] = w[e];
            }
        } else {
#pragma unroll 8
            for (int e = 0; e < UNIT; e++) {
                const int at = UNIT * u + e, k = slab * SLAB + at;
                x_tile[at * TILE_LD + line] = k < args.k ? x_row[k] : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll 8
        for (int e = 0; e < SLAB; e++) {
            const float4 a = *(const float4*)(x_tile + e * TILE_LD + 4 * i);
            const float4 b = *(const float4*)(w_tile + e * TILE_LD + 4 * j);
            const float rows[4] = {a.x, a.y, a.z, a.w}, cols[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) acc[r][c] = fmaf(rows[r], cols[c], acc[r][c]);
        }
    }
    float* out = args.out + blockIdx.z * args.plane;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        if (4 * i + r >= work.rows) continue;
        float* row = out + (i64)(work.first + 4 * i + r) * args.n + work.col;
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (work.col + 4 * j + c < args.n) row[4 * j + c] = acc[r][c];
    }
}
