// quantize_i8: rows of f32 activations to whole numbers with a scale for each 32. See int8.cuh.
//
// Grid (rows); 256 threads; no shared memory. Eight threads share a block of 32, four elements each. Blocks
// past `k`, up to whole slabs, are zeros. A block with an infinity or NaN has the scale NaN.

#include "int8.cuh"

struct QuantizeArgs {
    const float* x;       // [.., x_stride], the last axis dense
    const int* row_ids;   // [rows] or null: row of x for each row of out
    u32* out;             // [rows, k_pad] bytes
    BlockScale* scale;    // [rows, k_pad / 32]
    i64 x_stride;         // elements
    int k, k_pad;
};

extern "C" __global__ void __launch_bounds__(256) quantize_i8(const QuantizeArgs args) {
    const int row = blockIdx.x;
    const float* x = args.x + (args.row_ids ? args.row_ids[row] : row) * args.x_stride;
    u32* out = args.out + (i64)row * (args.k_pad / 4);
    BlockScale* scale = args.scale + (i64)row * (args.k_pad / 32);
    // Whole warps stay together: the last round may reach past the row.
    for (int first = 0; first < args.k_pad; first += 1024) {
        const int at = first + 4 * threadIdx.x;
        float v[4];
        float largest = 0.0f;
        bool finite = true;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = at + i < args.k ? x[at + i] : 0.0f;
            largest = fmaxf(largest, fabsf(v[i]));
            finite = finite && (__float_as_uint(v[i]) & 0x7fffffffu) < 0x7f800000u;
        }
        int bad = !finite;
#pragma unroll
        for (int step = 4; step > 0; step /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
            bad |= __shfl_xor_sync(0xffffffffu, bad, step);
        }
        // A tiny block keeps its scale, but its inverse must be finite.
        const float d = largest / 127.0f;
        const float inverse = largest > 1e-36f ? 127.0f / largest : 0.0f;
        u32 word = 0;
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int q = bad ? 0 : __float2int_rn(v[i] * inverse);
            sum += q;
            word |= ((u32)q & 255u) << 8 * i;
        }
#pragma unroll
        for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (at >= args.k_pad) continue;
        out[at / 4] = word;
        if (threadIdx.x % 8 == 0) {
            const float s = bad ? __int_as_float(0x7fc00000) : d;
            scale[at / 32] = make_float2(s, s * (float)sum);
        }
    }
}
