// Ops on whole rows: rms_norm, softmax, rope. Operands are f32, outputs dense.
//
// rms_norm, softmax: grid (rows); 256 threads; 64 bytes of shared memory. One block for each row. Sums
//   are added in an order that depends on `d` only.
// rope_interleaved, rope_halves: grid (ceil(pairs / 256), tokens), where a token has
//   heads * (d - r/2) tasks: r/2 that turn and d - r single elements that are copied, for each head.
// combine: out[t, i] = sum over j of weights[t, j] * x[ids[t, j], i], in the order of j. Grid
//   (ceil(d / 256), tokens), 256 threads.

#include "intrinsics.cuh"

struct RowOpArgs {
    const float* x;
    const float* weight;  // [d] or null; `rms_norm` only
    float* out;           // [rows, d]
    i64 row_stride;       // elements; columns of x are `col_stride` apart
    i64 col_stride;
    i64 weight_stride;
    int d;
    float parameter;  // eps of `rms_norm`, scale of `softmax`
};

// The sum (or maximum) of a value of each thread, in every thread. `shared` holds 8 values and may be
// used again after the next barrier.
template <bool MAXIMUM>
DEVICE float block_reduce(float x, float* shared) {
    x = MAXIMUM ? warp_max(x) : warp_sum(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
#pragma unroll
    for (int i = 1; i < 8; i++) x = MAXIMUM ? fmaxf(x, shared[i]) : x + shared[i];
    return x;
}

// Squares are taken of values that a power of two has brought near 1, so that rows of 1e20 (or 1e-20)
// neither overflow nor vanish.
extern "C" __global__ void __launch_bounds__(256) rms_norm(const RowOpArgs args) {
    __shared__ float shared[2][8];
    const float* x = args.x + blockIdx.x * args.row_stride;
    float* out = args.out + (i64)blockIdx.x * args.d;
    float largest = 0.0f;
    for (int i = threadIdx.x; i < args.d; i += 256)
        largest = fmaxf(largest, __uint_as_float(finite_magnitude_bits(x[i * args.col_stride])));
    largest = block_reduce<true>(largest, shared[0]);
    // A power of two with `largest * scale` in [1, 2).
    const u32 exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
    const float scale = __uint_as_float((254u - exponent) << 23);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < args.d; i += 256) {
        const float y = x[i * args.col_stride] * scale;
        sum = fmaf(y, y, sum);
    }
    sum = block_reduce<false>(sum, shared[1]);
    // mean(x^2) + eps = (mean(y^2) + eps * scale^2) / scale^2; the last factor goes into the product.
    const float eps = args.parameter * scale * scale;
    const float factor = scale / sqrtf(sum / (float)args.d + eps);
    // Where eps swallows a tiny row, its square root is taken without the scaling.
    const bool tiny = !(eps < 3.0e38f);
    const float plain = 1.0f / sqrtf(args.parameter);
    for (int i = threadIdx.x; i < args.d; i += 256) {
        const float value = x[i * args.col_stride];
        const float y = tiny ? value * plain : value * factor;
        out[i] = args.weight ? y * args.weight[i * args.weight_stride] : y;
    }
}

// exp(scale * x - largest) / sum. A row whose largest score is an infinity gives NaN, as the formula
// does.
extern "C" __global__ void __launch_bounds__(256) softmax(const RowOpArgs args) {
    __shared__ float shared[2][8];
    const float* x = args.x + blockIdx.x * args.row_stride;
    float* out = args.out + (i64)blockIdx.x * args.d;
    float largest = -__int_as_float(0x7f800000);
    for (int i = threadIdx.x; i < args.d; i += 256)
        largest = fmaxf(largest, args.parameter * x[i * args.col_stride]);
    largest = block_reduce<true>(largest, shared[0]);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < args.d; i += 256) {
        const float e = expf(args.parameter * x[i * args.col_stride] - largest);
        out[i] = e;
        sum += e;
    }
    sum = block_reduce<false>(sum, shared[1]);
    for (int i = threadIdx.x; i < args.d; i += 256) out[i] /= sum;
}

struct RopeArgs {
    const float* x;    // [tokens, heads, d]
    const float* cos;  // [tokens, half]
    const float* sin;
    float* out;
    i64 x_strides[3];
    i64 cos_strides[2];
    i64 sin_strides[2];
    int heads, d, half;
};

template <bool INTERLEAVED>
DEVICE void rope(const RopeArgs& args) {
    const int tasks = args.d - args.half;
    const i64 task = (i64)blockIdx.x * 256 + threadIdx.x;
    if (task >= (i64)args.heads * tasks) return;
    const int head = (int)(task / tasks), i = (int)(task % tasks), token = blockIdx.y;
    const float* x = args.x + token * args.x_strides[0] + head * args.x_strides[1];
    float* out = args.out + ((i64)token * args.heads + head) * args.d;
    if (i >= args.half) {
        const int at = i + args.half;
        out[at] = x[at * args.x_strides[2]];
        return;
    }
    const int first = INTERLEAVED ? 2 * i : i, second = INTERLEAVED ? 2 * i + 1 : i + args.half;
    const float a = x[first * args.x_strides[2]], b = x[second * args.x_strides[2]];
    const float c = args.cos[token * args.cos_strides[0] + i * args.cos_strides[1]];
    const float s = args.sin[token * args.sin_strides[0] + i * args.sin_strides[1]];
    out[first] = a * c - b * s;
    out[second] = b * c + a * s;
}

extern "C" __global__ void __launch_bounds__(256) rope_interleaved(const RopeArgs args) { rope<true>(args); }
extern "C" __global__ void __launch_bounds__(256) rope_halves(const RopeArgs args) { rope<false>(args); }

struct CombineArgs {
    const float* x;        // [rows, d]
    const float* weights;  // [tokens, used]
    const int* ids;        // [tokens, used], dense; rows of x
    float* out;            // [tokens, d]
    i64 x_strides[2];
    i64 weight_strides[2];
    int used, d;
};

extern "C" __global__ void __launch_bounds__(256) combine(const CombineArgs args) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const i64 token = blockIdx.y;
    if (i >= args.d) return;
    float sum = 0.0f;
    for (int j = 0; j < args.used; j++) {
        const float weight = args.weights[token * args.weight_strides[0] + j * args.weight_strides[1]];
        const i64 row = args.ids[token * args.used + j];
        sum = fmaf(weight, args.x[row * args.x_strides[0] + i * args.x_strides[1]], sum);
    }
    args.out[token * args.d + i] = sum;
}
