// Tiled products of activations in 8 bits with weights of one block format. See int8.cuh for the numbers.
//
// gemm_i8_<format>_dp4a, for every chip from sm_70 on: tile 64 x 64, 256 threads, thread (i, j) of 16 x 16
//   owns rows i + 16a and columns j + 16b, 4 x 4 of them; four products of whole numbers are one dp4a.
// gemm_i8_<format>_mma, for chips from sm_80 on (module sm80): tile 64 x 64, 128 threads; a warp owns
//   32 x 32 outputs, 16 x 8 x 32 products at a time. A step of 32 elements starts from zero, because its
//   sum has its own scales.
// Grid (row tiles of 64, ceil(n / 64), splits); 13312 bytes of shared memory.
//
// A slab of 64 elements of k at a time: whole numbers in rows of 80 bytes (so that eight rows start in
// different banks), factors and minimums of each run of 16, scales of each 32. The next slab is loaded
// into registers while one is multiplied. For formats whose groups are 32 or more, both runs of a group
// have the same factor.

#include "int8.cuh"

static const int TILE = 64;
static const int LD = 20;  // words between rows of shared memory

struct Tiles {
    u32 x[TILE * LD];
    u32 w[TILE * LD];
    BlockScale x_scale[2][TILE];
    Factors w_factors[4][TILE];  // of elements 16i to 16i + 15 of the slab
};

// What a thread carries of the next slab.
template <class F, int THREADS>
struct Carry {
    static const int WORDS = TILE * 16 / THREADS / 4;
    uint4 x[WORDS];
    BlockScale x_scale;
    typename F::Raw raw;

    DEVICE void load(const GemmI8Args& args, const Work& work, const u8* w_row, int slab) {
        const int tid = threadIdx.x;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const int at = tid + i * THREADS;
            const i64 row = packed_row(args, work, at / 4);
            x[i] = ((const uint4*)((const u8*)args.x + row * args.x_stride))[slab * 4 + at % 4];
        }
        if (tid >= 128) return;
        const i64 row = packed_row(args, work, tid % TILE);
        x_scale = args.x_scale[row * (args.x_stride / 32) + 2 * slab + tid / TILE];
        load_unit<F>(raw, w_row, slab, tid / TILE, args.k);
    }

    DEVICE void store(Tiles& tiles, int slab) const {
        const int tid = threadIdx.x;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const int at = tid + i * THREADS;
            *(uint4*)(tiles.x + at / 4 * LD + at % 4 * 4) = x[i];
        }
        if (tid >= 128) return;
        const int line = tid % TILE, u = tid / TILE;
        tiles.x_scale[u][line] = x_scale;
#pragma unroll
        for (int run = 0; run < 2; run++) {
            u32 q[4];
            F::quants(q, raw, slab, run);
            const int at = F::pos(u, run);
            uint4 words;
            words.x = signed_bytes<F::ZERO>(q[0]), words.y = signed_bytes<F::ZERO>(q[1]);
            words.z = signed_bytes<F::ZERO>(q[2]), words.w = signed_bytes<F::ZERO>(q[3]);
            *(uint4*)(tiles.w + line * LD + at / 4) = words;
            tiles.w_factors[at / 16][line] = F::factors(raw, slab, run, 1.0f);
        }
    }
};

DEVICE void store_sum(const GemmI8Args& args, const Work& work, int row, int col, float sum) {
    if (row < work.rows && work.col + col < args.n)
        args.out[blockIdx.z * args.plane + (i64)(work.first + row) * args.n + work.col + col] = sum;
}

#ifndef TENSOR_CORES

extern "C" __global__ void __launch_bounds__(256, 1)
    KERNEL_NAME(gemm_i8_, FORMAT_NAME, _dp4a)(const GemmI8Args args) {
    typedef FORMAT F;
    __shared__ __align__(16) Tiles tiles;
    const Work work = work_of<TILE, TILE>(args);
    if (work.rows <= 0) return;
    const int i = threadIdx.x / 16, j = threadIdx.x % 16;
    const u8* w_row = weight_row(args, work, threadIdx.x % TILE);
    Carry<F, 256> carry;
    float acc[4][4] = {};
    if (work.slab < work.slab_end) carry.load(args, work, w_row, work.slab);
    for (int slab = work.slab; slab < work.slab_end; slab++) {
        __syncthreads();
        carry.store(tiles, slab);
        __syncthreads();
        if (slab + 1 < work.slab_end) carry.load(args, work, w_row, slab + 1);
#pragma unroll
        for (int run = 0; run < 4; run++) {
            u32 x[4][4], w[4][4];
#pragma unroll
            for (int a = 0; a < 4; a++) {
                const uint4 p = *(const uint4*)(tiles.x + (i + 16 * a) * LD + 4 * run);
                const uint4 q = *(const uint4*)(tiles.w + (j + 16 * a) * LD + 4 * run);
                x[a][0] = p.x, x[a][1] = p.y, x[a][2] = p.z, x[a][3] = p.w;
                w[a][0] = q.x, w[a][1] = q.y, w[a][2] = q.z, w[a][3] = q.w;
            }
#pragma unroll
            for (int b = 0; b < 4; b++) {
                const Factors f = tiles.w_factors[run][j + 16 * b];
#pragma unroll
                for (int a = 0; a < 4; a++) {
                    const BlockScale s = tiles.x_scale[run / 2][i + 16 * a];
                    int dot = 0;
#pragma unroll
                    for (int e = 0; e < 4; e++) dot = dot_4(w[b][e], x[a][e], dot);
                    acc[a][b] = fmaf(f.factor * s.x, (float)dot, acc[a][b]);
                    // Affine groups have 32 elements: once for both runs.
                    if (F::AFFINE && run % 2 == 0) acc[a][b] = fmaf(-f.min, s.y, acc[a][b]);
                }
            }
        }
    }
#pragma unroll
    for (int a = 0; a < 4; a++)
#pragma unroll
        for (int b = 0; b < 4; b++) store_sum(args, work, i + 16 * a, j + 16 * b, acc[a][b]);
}

#else

extern "C" __global__ void __launch_bounds__(128, 1)
    KERNEL_NAME(gemm_i8_, FORMAT_NAME, _mma)(const GemmI8Args args) {
    typedef FORMAT F;
    // Q6_K has a factor for each 16 elements: its steps are halved by zeros in the right operand.
    const bool HALVES = F::ELEMS == 256 && F::ZERO == 32;
    __shared__ __align__(16) Tiles tiles;
    const Work work = work_of<TILE, TILE>(args);
    if (work.rows <= 0) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / 2 * 32, warp_col = warp % 2 * 32;
    const u8* w_row = weight_row(args, work, threadIdx.x % TILE);
    Carry<F, 128> carry;
    float acc[2][4][4] = {};
    if (work.slab < work.slab_end) carry.load(args, work, w_row, work.slab);
    for (int slab = work.slab; slab < work.slab_end; slab++) {
        __syncthreads();
        carry.store(tiles, slab);
        __syncthreads();
        if (slab + 1 < work.slab_end) carry.load(args, work, w_row, slab + 1);
#pragma unroll 1
        for (int step = 0; step < 2; step++) {
            u32 a[2][4], b[4][2];
#pragma unroll
            for (int t = 0; t < 2; t++)
                ldmatrix_x4(a[t], shared_address(tiles.x + (warp_row + 16 * t + lane % 16) * LD +
                                                 8 * step + lane / 16 * 4));
#pragma unroll
            for (int t = 0; t < 2; t++) {
                u32 r[4];
                const int row = warp_col + 16 * t + lane % 8 + lane / 16 * 8;
                ldmatrix_x4(r, shared_address(tiles.w + row * LD + 8 * step + lane / 8 % 2 * 4));
                b[2 * t][0] = r[0], b[2 * t][1] = r[1], b[2 * t + 1][0] = r[2], b[2 * t + 1][1] = r[3];
            }
#pragma unroll
            for (int t = 0; t < 2; t++) {
                const BlockScale s[2] = {tiles.x_scale[step][warp_row + 16 * t + lane / 4],
                                         tiles.x_scale[step][warp_row + 16 * t + lane / 4 + 8]};
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const int col = warp_col + 8 * c + lane % 4 * 2;
#pragma unroll
                    for (int half = 0; half < (HALVES ? 2 : 1); half++) {
                        int d[4] = {};
                        mma_s8(d, a[t], half == 1 ? 0u : b[c][0], HALVES && half == 0 ? 0u : b[c][1]);
                        const Factors f[2] = {tiles.w_factors[2 * step + half][col],
                                              tiles.w_factors[2 * step + half][col + 1]};
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            float& sum = acc[t][c][e];
                            sum = fmaf(f[e % 2].factor * s[e / 2].x, (float)d[e], sum);
                            if (F::AFFINE) sum = fmaf(-f[e % 2].min, s[e / 2].y, sum);
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_sum(args, work, warp_row + 16 * t + lane / 4 + e / 2 * 8,
                          warp_col + 8 * c + lane % 4 * 2 + e % 2, acc[t][c][e]);
}

#endif
