// What stands around the tiled products: activations to f16, the largest weight, sums of splits.
//
// pack_f16_{f32,f16,bf16}: rows of activations to f16, each scaled by a power of two (see gemm.cuh).
//   Grid (rows); 256 threads; 32 bytes of shared memory. One block reads its row twice. An infinity or
//   NaN in a row stays one, and does not change how the row's other elements are scaled.
// reduce_splits: adds the planes of a product whose k was split, in the order of the splits.
//   Grid (ceil(elems / 1024)); 256 threads, four elements each.
// fill_u32: `out[i] = value`. Grid (ceil(elems / 256)); 256 threads.

#include "intrinsics.cuh"

struct PackArgs {
    const void* x;       // [.., x_stride] of the kernel's type
    const int* row_ids;  // [rows] or null: row of x for each packed row
    u16* out;            // [rows, k_pad]
    float* scale;        // [rows]: what undoes the scaling
    i64 x_stride;        // elements
    int k, k_pad;
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

template <class E>
DEVICE void pack_f16(const PackArgs& args) {
    __shared__ u32 maxima[8];
    const int tid = threadIdx.x, row = blockIdx.x;
    const typename E::T* x =
        (const typename E::T*)args.x + (args.row_ids ? args.row_ids[row] : row) * args.x_stride;
    u32 largest = 0;
    for (int i = tid; i < args.k; i += 256) largest = max(largest, finite_magnitude_bits(E::get(x[i])));
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (tid % 32 == 0) maxima[tid / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, maxima[i]);
    const Pow2 p = pow2_of(largest);
    if (tid == 0) args.scale[row] = p.inverse;
    u32* out = (u32*)(args.out + (i64)row * args.k_pad);
    for (int i = tid; i < args.k_pad / 2; i += 256) {
        const float low = 2 * i < args.k ? E::get(x[2 * i]) : 0.0f;
        const float high = 2 * i + 1 < args.k ? E::get(x[2 * i + 1]) : 0.0f;
        out[i] = f32x2_to_f16x2(low * p.scale, high * p.scale);
    }
}

extern "C" __global__ void __launch_bounds__(256) pack_f16_f32(const PackArgs args) {
    pack_f16<F32Elem>(args);
}
extern "C" __global__ void __launch_bounds__(256) pack_f16_f16(const PackArgs args) {
    pack_f16<F16Elem>(args);
}
extern "C" __global__ void __launch_bounds__(256) pack_f16_bf16(const PackArgs args) {
    pack_f16<Bf16Elem>(args);
}

struct ReduceArgs {
    const float* planes;  // [splits, elems]
    float* out;           // [elems]
    i64 elems;
    int splits;
};

extern "C" __global__ void __launch_bounds__(256) reduce_splits(const ReduceArgs args) {
    const i64 first = (i64)blockIdx.x * 1024 + 4 * threadIdx.x;
    if (args.elems % 4 == 0) {
        if (first >= args.elems) return;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int s = 0; s < args.splits; s++) {
            const float4 x = *(const float4*)(args.planes + s * args.elems + first);
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        *(float4*)(args.out + first) = sum;
        return;
    }
    for (i64 i = first; i < min(first + 4, args.elems); i++) {
        float sum = 0.0f;
        for (int s = 0; s < args.splits; s++) sum += args.planes[s * args.elems + i];
        args.out[i] = sum;
    }
}

struct FillArgs {
    u32* out;
    i64 elems;
    u32 value;
};

extern "C" __global__ void __launch_bounds__(256) fill_u32(const FillArgs args) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i < args.elems) args.out[i] = args.value;
}
