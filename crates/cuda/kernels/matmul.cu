// Products of dense matrices of any strides, without tensor cores: out = lhs * rhsᵀ in f32.
//
//     out[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, n, k]
//
// The left operand is f32, the right one f32, f16 or bf16. Strides are in elements and may be 0; `k` may
// be 0. Sums are f32, added along k in order (tiles) or by lanes in a fixed order (gemv).
//
// matmul_<rhs>_t64:  tile 64 x 64, k in steps of 16. Grid (row tiles * column tiles, 1, any), 256 threads,
//                    8704 bytes of shared memory. Thread (i, j) of 16 x 16 owns 4 x 4 outputs.
// matmul_<rhs>_t128: tile 128 x 128, k in steps of 8, 8448 bytes; thread (i, j) owns 8 x 8 outputs, in four quarters.
// matvec_nt_<rhs>_r{1,4,8}: rows of the right operand are dense in k. A warp for each column and up to
//                    that many rows. Grid (ceil(n / 4), ceil(m / rows), any), 128 threads.
// matvec_nn_<rhs>_r{1,8}: columns of the right operand are dense in n. A lane for each column, eight
//                    warps share k. Grid (ceil(n / 32), ceil(m / rows), any), 256 threads, rows * 1024
//                    bytes of shared memory.
// The last axis of each grid shares the batch.

#include "intrinsics.cuh"

struct MatMulArgs {
    const float* lhs;
    const void* rhs;
    float* out;          // [batch, m, n], dense
    i64 lhs_strides[3];  // batch, m, k
    i64 rhs_strides[3];  // batch, n, k
    int batch, m, n, k;
};

struct F32Elem {
    typedef float T;
    static DEVICE float get(T x) { return x; }
};
struct F16Elem {
    typedef u16 T;
    static DEVICE float get(T x) { return f16_to_f32(x); }
};
struct Bf16Elem {
    typedef u16 T;
    static DEVICE float get(T x) { return bf16_to_f32(x); }
};

// Elements of one operand's tile that a thread carries from global to shared memory. Neighbouring
// threads follow the axis whose elements are neighbours.
template <class E, int ROWS, int DEPTH>
struct TileLoader {
    static const int COUNT = ROWS * DEPTH / 256;
    float held[COUNT];
    bool along_k;

    DEVICE void place(int i, int& row, int& k) const {
        const int tid = threadIdx.x;
        if (along_k) {
            k = tid % DEPTH;
            row = tid / DEPTH + i * (256 / DEPTH);
        } else {
            row = tid % ROWS;
            k = tid / ROWS + i * (256 / ROWS);
        }
    }
    // Rows and depths outside give zeros.
    DEVICE void load(const typename E::T* from, i64 row_stride, i64 k_stride, int rows, int depth) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int row, k;
            place(i, row, k);
            const bool inside = row < rows && k < depth;
            held[i] = inside ? E::get(from[row * row_stride + k * k_stride]) : 0.0f;
        }
    }
    DEVICE void store(float* tile) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int row, k;
            place(i, row, k);
            tile[k * (ROWS + 4) + row] = held[i];
        }
    }
};

// QUARTERS: 1 for 4 x 4 outputs of a thread, 2 for 8 x 8 in 2 x 2 pieces, 64 apart.
template <class E, int QUARTERS>
DEVICE void matmul(const MatMulArgs& args) {
    const int BM = 64 * QUARTERS, DEPTH = QUARTERS == 1 ? 16 : 8, LD = BM + 4;
    const int OWN = 4 * QUARTERS;
    __shared__ __align__(16) float a_tile[2 * DEPTH * LD];
    float* const b_tile = a_tile + DEPTH * LD;
    const int tid = threadIdx.x, i = tid / 16, j = tid % 16;
    const int row_tiles = (args.m + BM - 1) / BM;
    const int row0 = blockIdx.x % row_tiles * BM, col0 = blockIdx.x / row_tiles * BM;
    const i64 ak = args.lhs_strides[2], bk = args.rhs_strides[2];
    TileLoader<F32Elem, BM, DEPTH> a_loader;
    TileLoader<E, BM, DEPTH> b_loader;
    a_loader.along_k = ak == 1;
    b_loader.along_k = bk == 1;

    for (int batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
        const float* a = args.lhs + batch * args.lhs_strides[0] + row0 * args.lhs_strides[1];
        const typename E::T* b = (const typename E::T*)args.rhs + batch * args.rhs_strides[0] +
                                 col0 * args.rhs_strides[1];
        float acc[OWN][OWN] = {};
        auto load = [&](int k) {
            a_loader.load(a + k * ak, args.lhs_strides[1], ak, args.m - row0, args.k - k);
            b_loader.load(b + k * bk, args.rhs_strides[1], bk, args.n - col0, args.k - k);
        };
        load(0);
        for (int k = 0; k < args.k; k += DEPTH) {
            __syncthreads();
            a_loader.store(a_tile);
            b_loader.store(b_tile);
            __syncthreads();
            if (k + DEPTH < args.k) load(k + DEPTH);
#pragma unroll
            for (int e = 0; e < DEPTH; e++) {
                float rows[OWN], cols[OWN];
#pragma unroll
                for (int q = 0; q < QUARTERS; q++) {
                    const float4 r = *(const float4*)(a_tile + e * LD + 64 * q + 4 * i);
                    const float4 c = *(const float4*)(b_tile + e * LD + 64 * q + 4 * j);
                    rows[4 * q] = r.x, rows[4 * q + 1] = r.y, rows[4 * q + 2] = r.z, rows[4 * q + 3] = r.w;
                    cols[4 * q] = c.x, cols[4 * q + 1] = c.y, cols[4 * q + 2] = c.z, cols[4 * q + 3] = c.w;
                }
#pragma unroll
                for (int r = 0; r < OWN; r++)
#pragma unroll
                    for (int c = 0; c < OWN; c++) acc[r][c] = fmaf(rows[r], cols[c], acc[r][c]);
            }
        }
        float* out = args.out + (i64)batch * args.m * args.n;
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            const int row = row0 + 64 * (r / 4) + 4 * i + r % 4;
            if (row >= args.m) continue;
#pragma unroll
            for (int c = 0; c < OWN; c++) {
                const int col = col0 + 64 * (c / 4) + 4 * j + c % 4;
                if (col < args.n) out[(i64)row * args.n + col] = acc[r][c];
            }
        }
    }
}

// 16 bytes of the right operand as f32.
DEVICE void widen(float (&w)[4], const uint4& q, F32Elem) {
    w[0] = __uint_as_float(q.x), w[1] = __uint_as_float(q.y);
    w[2] = __uint_as_float(q.z), w[3] = __uint_as_float(q.w);
}
template <class E>
DEVICE void widen(float (&w)[8], const uint4& q, E) {
    const u32 words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = E::get((u16)(words[i / 2] >> 16 * (i % 2)));
}

DEVICE bool aligned_16(const void* p) { return ((u32)(u64)p & 15u) == 0; }

template <class E, int ROWS>
DEVICE void matvec_nt(const MatMulArgs& args) {
    const int VECTOR = 16 / sizeof(typename E::T);
    const int lane = threadIdx.x % 32, col = blockIdx.x * 4 + threadIdx.x / 32;
    const int first = blockIdx.y * ROWS;
    if (col >= args.n) return;
    for (int batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
        const typename E::T* w =
            (const typename E::T*)args.rhs + batch * args.rhs_strides[0] + col * args.rhs_strides[1];
        const float* x[ROWS];
        bool aligned = aligned_16(w) && args.lhs_strides[2] == 1;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = min(first + r, args.m - 1);
            x[r] = args.lhs + batch * args.lhs_strides[0] + row * args.lhs_strides[1];
            aligned = aligned && aligned_16(x[r]);
        }
        const int whole = aligned ? args.k / (32 * VECTOR) * (32 * VECTOR) : 0;
        float acc[ROWS] = {};
        for (int k = VECTOR * lane; k < whole; k += 32 * VECTOR) {
            float q[VECTOR];
            widen(q, *(const uint4*)(w + k), E());
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int e = 0; e < VECTOR; e += 4) {
                    const float4 a = *(const float4*)(x[r] + k + e);
                    acc[r] = fmaf(a.x, q[e], acc[r]);
                    acc[r] = fmaf(a.y, q[e + 1], acc[r]);
                    acc[r] = fmaf(a.z, q[e + 2], acc[r]);
                    acc[r] = fmaf(a.w, q[e + 3], acc[r]);
                }
            }
        }
        for (int k = whole + lane; k < args.k; k += 32) {
            const float q = E::get(w[k]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) acc[r] = fmaf(x[r][k * args.lhs_strides[2]], q, acc[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float sum = warp_sum(acc[r]);
            if (lane == 0 && first + r < args.m)
                args.out[((i64)batch * args.m + first + r) * args.n + col] = sum;
        }
    }
}

template <class E, int ROWS>
DEVICE void matvec_nn(const MatMulArgs& args) {
    __shared__ float sums[8 * ROWS * 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int col = min((int)blockIdx.x * 32 + lane, args.n - 1);
    const int first = blockIdx.y * ROWS;
    for (int batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
        const typename E::T* w =
            (const typename E::T*)args.rhs + batch * args.rhs_strides[0] + col * args.rhs_strides[1];
        const float* x = args.lhs + batch * args.lhs_strides[0];
        float acc[ROWS] = {};
#pragma unroll 4
        for (int k = warp; k < args.k; k += 8) {
            const float q = E::get(w[k * args.rhs_strides[2]]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int row = min(first + r, args.m - 1);
                acc[r] = fmaf(x[row * args.lhs_strides[1] + k * args.lhs_strides[2]], q, acc[r]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[(warp * ROWS + r) * 32 + lane] = acc[r];
        __syncthreads();
        for (int r = warp; r < ROWS; r += 8) {
            float sum = 0.0f;
#pragma unroll
            for (int part = 0; part < 8; part++) sum += sums[(part * ROWS + r) * 32 + lane];
            if (first + r < args.m && (int)blockIdx.x * 32 + lane < args.n)
                args.out[((i64)batch * args.m + first + r) * args.n + col] = sum;
        }
    }
}

#define KERNEL(NAME, THREADS, CALL)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const MatMulArgs args) { CALL(args); }
#define MATMUL(E, NAME)                                                                         \
    KERNEL(matmul_##NAME##_t64, 256, (matmul<E, 1>))                                            \
    KERNEL(matmul_##NAME##_t128, 256, (matmul<E, 2>))                                           \
    KERNEL(matvec_nt_##NAME##_r1, 128, (matvec_nt<E, 1>))                                       \
    KERNEL(matvec_nt_##NAME##_r4, 128, (matvec_nt<E, 4>))                                       \
    KERNEL(matvec_nt_##NAME##_r8, 128, (matvec_nt<E, 8>))                                       \
    KERNEL(matvec_nn_##NAME##_r1, 256, (matvec_nn<E, 1>))                                       \
    KERNEL(matvec_nn_##NAME##_r8, 256, (matvec_nn<E, 8>))

MATMUL(F32Elem, f32)
MATMUL(F16Elem, f16)
MATMUL(Bf16Elem, bf16)

// copy_f16, copy_bf16: elements of any strides to dense f32. Grid (any), 256 threads.
struct CopyArgs {
    const u16* x;
    float* out;
    i64 elems;
    i64 strides[4];
    int sizes[4];
};

template <class E>
DEVICE void copy(const CopyArgs& args) {
    const i64 step = (i64)gridDim.x * 256;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < args.elems; i += step)
        args.out[i] = E::get(args.x[strided(i, args.elems, args.sizes, args.strides)]);
}

extern "C" __global__ void __launch_bounds__(256, 1) copy_f16(const CopyArgs args) { copy<F16Elem>(args); }
extern "C" __global__ void __launch_bounds__(256, 1) copy_bf16(const CopyArgs args) { copy<Bf16Elem>(args); }
