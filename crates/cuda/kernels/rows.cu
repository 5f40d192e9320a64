// rows_<format>: rows of a table by number, decoded to f32 exactly as the reference decoder does.
//   Grid (ceil(d / 4096), tokens); 128 threads, 32 elements each. A number outside the table ends the
//   command with a fault.
// weight_max_<format>: bits of the largest finite magnitude of a table, by atomic maximum into one word
//   that starts as 0. Grid (any); 256 threads; the blocks share the work.
//
// Both take every float type and block format, `k` or `d` elements a row.

#include "dequant.cuh"

struct RowsArgs {
    const u8* table;
    const int* ids;  // [tokens]
    float* out;      // [tokens, d]
    i64 row_bytes;
    int rows, d;
};

template <class F>
DEVICE void rows(const RowsArgs& args) {
    const int id = args.ids[blockIdx.y];
    if (id < 0 || id >= args.rows) fault();
    const int unit = blockIdx.x * 128 + threadIdx.x, slab = unit / 2, u = unit % 2;
    if (SLAB * slab >= args.d) return;
    typename F::Raw raw;
    load_unit<F>(raw, args.table + id * args.row_bytes, slab, u, args.d);
    float* out = args.out + (i64)blockIdx.y * args.d;
#pragma unroll
    for (int run = 0; run < 2; run++) {
        float w[RUN];
        decode<F, true>(w, raw, slab, run, 1.0f);
        const int first = SLAB * slab + F::pos(u, run);
        if (args.d % 4 == 0) {
#pragma unroll
            for (int i = 0; i < RUN; i += 4)
                if (first + i < args.d)
                    *(float4*)(out + first + i) = make_float4(w[i], w[i + 1], w[i + 2], w[i + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < RUN; i++)
                if (first + i < args.d) out[first + i] = w[i];
        }
    }
}

struct WeightMaxArgs {
    const u8* w;
    u32* out;
    i64 row_bytes;
    i64 rows;
    int k;
};

template <class F>
DEVICE void weight_max(const WeightMaxArgs& args) {
    const i64 units = 2 * ((args.k + SLAB - 1) / SLAB);
    u32 largest = 0;
    const i64 step = (i64)gridDim.x * 256;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < args.rows * units; i += step) {
        const int unit = (int)(i % units), slab = unit / 2, u = unit % 2;
        typename F::Raw raw;
        load_unit<F>(raw, args.w + i / units * args.row_bytes, slab, u, args.k);
#pragma unroll
        for (int run = 0; run < 2; run++) {
            float w[RUN];
            decode<F, true>(w, raw, slab, run, 1.0f);
#pragma unroll
            for (int e = 0; e < RUN; e++) largest = max(largest, finite_magnitude_bits(w[e]));
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (threadIdx.x % 32 == 0) atomicMax(args.out, largest);
}

#define ROWS(FORMAT, NAME)                                                                      \
    extern "C" __global__ void __launch_bounds__(128) rows_##NAME(const RowsArgs args) {        \
        rows<FORMAT>(args);                                                                     \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(256) weight_max_##NAME(const WeightMaxArgs args) { \
        weight_max<FORMAT>(args);                                                               \
    }

ROWS(F32, f32)
ROWS(F16, f16)
ROWS(BF16, bf16)
ROWS(Q4_0, q4_0)
ROWS(Q5_0, q5_0)
ROWS(Q8_0, q8_0)
ROWS(Q4_K, q4_k)
ROWS(Q5_K, q5_k)
ROWS(Q6_K, q6_k)
ROWS(TQ2_0, tq2_0)
