// Types, bit tricks and the instructions that C++ has no name for. Nothing here includes a header of
// the toolkit, so that the sources also compile where only the run-time compiler is installed.
#ifndef INTRINSICS_CUH
#define INTRINSICS_CUH

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__

// Name of a kernel, from parts that are macros themselves.
#define PASTE3(a, b, c) a##b##c
#define KERNEL_NAME(a, b, c) PASTE3(a, b, c)

DEVICE float f16_to_f32(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// Rounds to nearest even; values from 65520 on become infinite.
DEVICE u16 f32_to_f16(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

DEVICE float bf16_to_f32(u16 h) { return __uint_as_float((u32)h << 16); }

DEVICE u32 pack_halves(u16 low, u16 high) { return (u32)low | (u32)high << 16; }

// Two f32 to two f16, `low` in the low half.
DEVICE u32 f32x2_to_f16x2(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return pack_halves(f32_to_f16(low), f32_to_f16(high));
#endif
}

// Ends the command with a fault.
DEVICE void fault() { asm volatile("trap;"); }

// Shared memory whose size the launch chooses.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]

// Address in the shared window, as the instructions below take it.
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Tensor cores of every chip from sm_70 on: D[16, 16] += A[16, 16] * B[16, 16]. The mapping of
// elements to lanes is opaque. Rows are `ld` elements apart; pointers are 32-byte aligned.
struct WmmaHalf {
    u32 x[8];
};
struct WmmaAcc {
    float x[8];
};

// A, row-major.
DEVICE void wmma_load_a(WmmaHalf& f, u32 address, int ld) {
    asm volatile("wmma.load.a.sync.aligned.m16n16k16.shared.row.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3]), "=r"(f.x[4]), "=r"(f.x[5]),
                   "=r"(f.x[6]), "=r"(f.x[7])
                 : "r"(address), "r"(ld)
                 : "memory");
}

// B, column-major: column j is row j of what is stored.
DEVICE void wmma_load_b(WmmaHalf& f, u32 address, int ld) {
    asm volatile("wmma.load.b.sync.aligned.m16n16k16.shared.col.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3]), "=r"(f.x[4]), "=r"(f.x[5]),
                   "=r"(f.x[6]), "=r"(f.x[7])
                 : "r"(address), "r"(ld)
                 : "memory");
}

DEVICE void wmma_mma(WmmaAcc& d, const WmmaHalf& a, const WmmaHalf& b) {
    asm volatile("wmma.mma.sync.aligned.m16n16k16.row.col.f32.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, "
                 "{%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23}, "
                 "{%0,%1,%2,%3,%4,%5,%6,%7};"
                 : "+f"(d.x[0]), "+f"(d.x[1]), "+f"(d.x[2]), "+f"(d.x[3]), "+f"(d.x[4]), "+f"(d.x[5]),
                   "+f"(d.x[6]), "+f"(d.x[7])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(a.x[4]), "r"(a.x[5]),
                   "r"(a.x[6]), "r"(a.x[7]), "r"(b.x[0]), "r"(b.x[1]), "r"(b.x[2]), "r"(b.x[3]),
                   "r"(b.x[4]), "r"(b.x[5]), "r"(b.x[6]), "r"(b.x[7]));
}

DEVICE void wmma_store(u32 address, const WmmaAcc& d, int ld) {
    asm volatile("wmma.store.d.sync.aligned.m16n16k16.shared.row.f32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8}, %9;"
                 :
                 : "r"(address), "f"(d.x[0]), "f"(d.x[1]), "f"(d.x[2]), "f"(d.x[3]), "f"(d.x[4]),
                   "f"(d.x[5]), "f"(d.x[6]), "f"(d.x[7]), "r"(ld)
                 : "memory");
}

// From sm_80 on. `mma_f16`: D[16, 8] += A[16, 16] * B[16, 8], with lane l holding rows l/4 and l/4 + 8
// and columns 2(l%4) and 2(l%4) + 1 of D.
DEVICE void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// D[16, 8] += A[16, 32] * B[32, 8] in whole numbers; the mapping is that of `mma_f16`.
DEVICE void mma_s8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sum of the products of four signed bytes, and `c`.
DEVICE int dot_4(u32 a, u32 b, int c) {
    int d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Four 8x8 matrices of 16-bit elements; lane 8i + r names row r of matrix i (16 aligned bytes).
DEVICE void ldmatrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// 16 aligned bytes to shared memory.
DEVICE void store_shared_16(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

DEVICE void store_shared_4(u32 to, u32 a) {
    asm volatile("st.shared.b32 [%0], %1;" : : "r"(to), "r"(a) : "memory");
}

// 16 aligned bytes to shared memory, in the background.
DEVICE void copy_async_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(to), "l"(__cvta_generic_to_global(from))
                 : "memory");
}

DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of the youngest groups are under way.
template <int PENDING>
DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

// Sum over the lanes of a warp, the same in every lane and in every run.
DEVICE float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// Where element `i` of `elems` in row-major order lies, in an operand of four axes.
template <class N>
DEVICE i64 strided_as(N rest, const int (&sizes)[4], const i64 (&strides)[4]) {
    i64 at = 0;
#pragma unroll
    for (int axis = 3; axis >= 0; axis--) {
        const N next = rest / (N)sizes[axis];
        at += (i64)(rest - next * (N)sizes[axis]) * strides[axis];
        rest = next;
    }
    return at;
}

// Divides in 32 bits where that suffices.
DEVICE i64 strided(i64 i, i64 elems, const int (&sizes)[4], const i64 (&strides)[4]) {
    if (elems <= 0x7fffffff) return strided_as<u32>((u32)i, sizes, strides);
    return strided_as<u64>((u64)i, sizes, strides);
}

// Power-of-two scaling of values whose largest finite magnitude has the bits `max_bits`: times
// `scale`, that magnitude lies in [2^14, 2^15), well inside the range of f16; `inverse` undoes it.
// Both are exact. Magnitudes below 2^-112 are scaled by 2^126 only.
struct Pow2 {
    float scale;
    float inverse;
};

DEVICE Pow2 pow2_of(u32 max_bits) {
    u32 exponent = max_bits >> 23;
    exponent = exponent < 15 ? 15 : exponent;
    Pow2 p;
    p.scale = __uint_as_float((268u - exponent) << 23);
    p.inverse = __uint_as_float((exponent - 14u) << 23);
    return p;
}

// Bits of |x|, which order as the magnitudes do; 0 for infinities and NaN.
DEVICE u32 finite_magnitude_bits(float x) {
    const u32 bits = __float_as_uint(x) & 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0u;
}

#endif
