// Decoders of the block formats, as they lie in a GGUF file.
//
// A *slab* is 64 consecutive elements of a row, a *unit* is 32 elements of a slab that one thread
// decodes: two *runs* of 16, at `pos(u, 0)` and `pos(u, 1)` of the slab. Units are cut so that the runs
// of a unit share their bytes. A row of a format of 32-element blocks may end in the middle of a slab.
//
// Rows of Q4_K and Q5_K start at multiples of 16 bytes, those of the other formats at even addresses:
// the loaders use no wider access than that allows and touch no byte outside the row, except bytes of
// the two before its first one that share their 32-bit word.
//
// A run of a block format is 16 unsigned bytes (`quants`), and an element of it `factor * (byte - ZERO)`, or
// `factor * byte - min` where AFFINE. `decode<F, EXACT>` multiplies by `scale`, a power of two. Without
// EXACT a product and a difference may be fused; with it, results are those of the reference decoder
// bit by bit.
#ifndef DEQUANT_CUH
#define DEQUANT_CUH

#include "blocks.cuh"
#include "intrinsics.cuh"

static const int SLAB = 64;
static const int UNIT = 32;
static const int RUN = 16;

// `N` words from an even address.
template <int N>
DEVICE void load_words(u32 (&out)[N], const u8* p) {
    const u32 odd = (u32)(u64)p & 2u;
    const u32* words = (const u32*)(p - odd);
    u32 last = *(const u16*)(p + 4 * N - 2);
    u32 w[N + 1];
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = words[i];
    w[N] = last;
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = __funnelshift_r(w[i], w[i + 1], 8 * odd);
}

// Four words from a multiple of 16.
DEVICE void load_quad(u32 (&out)[4], const u8* p) {
    const uint4 q = *(const uint4*)p;
    out[0] = q.x, out[1] = q.y, out[2] = q.z, out[3] = q.w;
}

DEVICE float load_f16(const u8* p) { return f16_to_f32(*(const u16*)p); }

// Byte `i` of `word` plus 2^23, which holds every small whole number exactly.
DEVICE float byte_plus(u32 word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | i));
}

static const float BIAS = 8388608.0f;

DEVICE float small_to_f32(u32 n) { return __uint_as_float(0x4b000000u | n) - BIAS; }

template <bool EXACT>
DEVICE float scale_minus(float factor, float q, float min) {
    return EXACT ? __fsub_rn(__fmul_rn(factor, q), min) : fmaf(factor, q, -min);
}

// Scale and minimum of group `g`, as Q4_K and Q5_K pack them into the last three words of the head.
DEVICE void scale_min(const u32 (&head)[4], int g, u32& scale, u32& min) {
    const int shift = 8 * (g & 3);
    const u32 a = head[1] >> shift, b = head[2] >> shift, c = head[3] >> shift;
    scale = g < 4 ? a & 63u : (c & 15u) | (a >> 2 & 48u);
    min = g < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 2 & 48u);
}

// Factor and minimum of an element.
struct Factors {
    float factor, min;
};

DEVICE Factors group_factors(const u32 (&head)[4], int g, float scale) {
    u32 s, m;
    scale_min(head, g, s, m);
    Factors f;
    f.factor = f16_to_f32((u16)head[0]) * scale * small_to_f32(s);
    f.min = f16_to_f32((u16)(head[0] >> 16)) * scale * small_to_f32(m);
    return f;
}

DEVICE Factors one_factor(u16 d, float scale) {
    Factors f = {f16_to_f32(d) * scale, 0.0f};
    return f;
}

struct Q4_K {
    static const int ELEMS = Q4_K_ELEMS, BYTES = Q4_K_BYTES, ZERO = 0;
    static const bool AFFINE = true;
    struct Raw {
        u32 head[4], q[4];
    };
    static DEVICE int pos(int u, int run) { return 16 * u + 32 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int) {
        const u8* block = row + (i64)(slab / 4) * BYTES;
        load_quad(r.head, block);
        load_quad(r.q, block + 16 + 32 * (slab % 4) + 16 * u);
    }
    static DEVICE void quants(u32 (&q)[4], const Raw& r, int, int run) {
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = r.q[j] >> 4 * run & 0x0f0f0f0fu;
    }
    static DEVICE Factors factors(const Raw& r, int slab, int run, float scale) {
        return group_factors(r.head, 2 * (slab % 4) + run, scale);
    }
};

struct Q5_K {
    static const int ELEMS = Q5_K_ELEMS, BYTES = Q5_K_BYTES, ZERO = 0;
    static const bool AFFINE = true;
    struct Raw {
        u32 head[4], h[4], q[4];
    };
    static DEVICE int pos(int u, int run) { return 16 * u + 32 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int) {
        const u8* block = row + (i64)(slab / 4) * BYTES;
        load_quad(r.head, block);
        load_quad(r.h, block + 16 + 16 * u);
        load_quad(r.q, block + 48 + 32 * (slab % 4) + 16 * u);
    }
    static DEVICE void quants(u32 (&q)[4], const Raw& r, int slab, int run) {
        const int g = 2 * (slab % 4) + run;
#pragma unroll
        for (int j = 0; j < 4; j++)
            q[j] = (r.q[j] >> 4 * run & 0x0f0f0f0fu) | (r.h[j] >> g & 0x01010101u) << 4;
    }
    static DEVICE Factors factors(const Raw& r, int slab, int run, float scale) {
        return group_factors(r.head, 2 * (slab % 4) + run, scale);
    }
};

struct Q6_K {
    static const int ELEMS = Q6_K_ELEMS, BYTES = Q6_K_BYTES, ZERO = 32;
    static const bool AFFINE = false;
    struct Raw {
        u32 l0[4], l1[4], h[4];
        i8 s0, s1;
        u16 d;
    };
    static DEVICE int pos(int u, int run) { return 16 * u + 32 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int) {
        const u8* block = row + (i64)(slab / 4) * BYTES;
        const int half = slab % 4 / 2;
        load_words(r.l0, block + 64 * half + 16 * u);
        load_words(r.l1, block + 64 * half + 32 + 16 * u);
        load_words(r.h, block + 128 + 32 * half + 16 * u);
        r.s0 = *(const i8*)(block + 192 + 4 * (slab % 4) + u);
        r.s1 = *(const i8*)(block + 192 + 4 * (slab % 4) + 2 + u);
        r.d = *(const u16*)(block + 208);
    }
    static DEVICE void quants(u32 (&q)[4], const Raw& r, int slab, int run) {
        const int high = slab % 2;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 low = (run ? r.l1[j] : r.l0[j]) >> 4 * high & 0x0f0f0f0fu;
            q[j] = low | (r.h[j] >> (4 * high + 2 * run) & 0x03030303u) << 4;
        }
    }
    static DEVICE Factors factors(const Raw& r, int, int run, float scale) {
        Factors f = one_factor(r.d, scale);
        f.factor *= (float)(run ? r.s1 : r.s0);
        return f;
    }
};

struct Q8_0 {
    static const int ELEMS = Q8_0_ELEMS, BYTES = Q8_0_BYTES, ZERO = 128;
    static const bool AFFINE = false;
    struct Raw {
        u32 q[8];
        u16 d;
    };
    static DEVICE int pos(int u, int run) { return 32 * u + 16 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int) {
        const u8* block = row + (i64)(2 * slab + u) * BYTES;
        r.d = *(const u16*)block;
        load_words(r.q, block + 2);
    }
    static DEVICE void quants(u32 (&q)[4], const Raw& r, int, int run) {
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = r.q[4 * run + j] ^ 0x80808080u;
    }
    static DEVICE Factors factors(const Raw& r, int, int, float scale) { return one_factor(r.d, scale); }
};

struct Q4_0 {
    static const int ELEMS = Q4_0_ELEMS, BYTES = Q4_0_BYTES, ZERO = 8;
    static const bool AFFINE = false;
    struct Raw {
        u32 q[4];
        u16 d;
    };
    static DEVICE int pos(int u, int run) { return 32 * u + 16 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int) {
        const u8* block = row + (i64)(2 * slab + u) * BYTES;
        r.d = *(const u16*)block;
        load_words(r.q, block + 2);
    }
    static DEVICE void quants(u32 (&q)[4], const Raw& r, int, int run) {
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = r.q[j] >> 4 * run & 0x0f0f0f0fu;
    }
    static DEVICE Factors factors(const Raw& r, int, int, float scale) { return one_factor(r.d, scale); }
};

// The four bits of `bits` as the bits 4 of four bytes.
DEVICE u32 fifth_bits(u32 bits) { return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4; }

struct Q5_0 {
    static const int ELEMS = Q5_0_ELEMS, BYTES = Q5_0_BYTES, ZERO = 16;
    static const bool AFFINE = false;
    struct Raw {
        u32 q[4], h;
        u16 d;
    };
    static DEVICE int pos(int u, int run) { return 32 * u + 16 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int) {
        const u8* block = row + (i64)(2 * slab + u) * BYTES;
        r.d = *(const u16*)block;
        r.h = pack_halves(*(const u16*)(block + 2), *(const u16*)(block + 4));
        load_words(r.q, block + 6);
    }
    static DEVICE void quants(u32 (&q)[4], const Raw& r, int, int run) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            q[j] = (r.q[j] >> 4 * run & 0x0f0f0f0fu) | fifth_bits(r.h >> (16 * run + 4 * j));
    }
    static DEVICE Factors factors(const Raw& r, int, int, float scale) { return one_factor(r.d, scale); }
};

struct TQ2_0 {
    static const int ELEMS = TQ2_0_ELEMS, BYTES = TQ2_0_BYTES, ZERO = 1;
    static const bool AFFINE = false;
    struct Raw {
        u32 q[4];
        u16 d;
    };
    static DEVICE int pos(int u, int run) { return 16 * u + 32 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int) {
        const u8* block = row + (i64)(slab / 4) * BYTES;
        load_words(r.q, block + 32 * (slab % 4 / 2) + 16 * u);
        r.d = *(const u16*)(block + 64);
    }
    static DEVICE void quants(u32 (&q)[4], const Raw& r, int slab, int run) {
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = r.q[j] >> (4 * (slab % 2) + 2 * run) & 0x03030303u;
    }
    static DEVICE Factors factors(const Raw& r, int, int, float scale) { return one_factor(r.d, scale); }
};

// Run `run` of a unit, times `scale`.
template <class F, bool EXACT>
DEVICE void decode_run(float (&w)[RUN], const typename F::Raw& raw, int slab, int run, float scale, F) {
    u32 q[4];
    F::quants(q, raw, slab, run);
    const Factors f = F::factors(raw, slab, run, scale);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const float byte = byte_plus(q[i / 4], i % 4);
        w[i] = F::AFFINE ? scale_minus<EXACT>(f.factor, byte - BIAS, f.min)
                         : f.factor * (byte - (BIAS + F::ZERO));
    }
}

// Rows of 16-bit floats of any length; `k` bounds the last unit.
template <bool BRAIN>
struct Half {
    static const int ELEMS = 1, BYTES = 2;
    struct Raw {
        u32 q[16];
    };
    static DEVICE int pos(int u, int run) { return 32 * u + 16 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int k) {
        const int first = SLAB * slab + UNIT * u;
        const u8* p = row + 2 * (i64)first;
        if (first + UNIT <= k) {
            if (((u32)(u64)p & 15u) == 0) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint4 q = ((const uint4*)p)[j];
                    r.q[4 * j] = q.x, r.q[4 * j + 1] = q.y, r.q[4 * j + 2] = q.z, r.q[4 * j + 3] = q.w;
                }
            } else {
                load_words(r.q, p);
            }
            return;
        }
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const u16 low = first + 2 * j < k ? ((const u16*)p)[2 * j] : (u16)0;
            const u16 high = first + 2 * j + 1 < k ? ((const u16*)p)[2 * j + 1] : (u16)0;
            r.q[j] = pack_halves(low, high);
        }
    }
};

template <class F, bool EXACT, bool BRAIN>
DEVICE void decode_run(float (&w)[RUN], const typename F::Raw& raw, int, int run, float scale, Half<BRAIN>) {
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const u16 h = (u16)(raw.q[8 * run + i / 2] >> 16 * (i % 2));
        w[i] = (BRAIN ? bf16_to_f32(h) : f16_to_f32(h)) * scale;
    }
}

typedef Half<false> F16;
typedef Half<true> BF16;

// Rows of f32 at multiples of 4 bytes.
struct F32 {
    static const int ELEMS = 1, BYTES = 4;
    struct Raw {
        float x[UNIT];
    };
    static DEVICE int pos(int u, int run) { return 32 * u + 16 * run; }
    static DEVICE void load(Raw& r, const u8* row, int slab, int u, int k) {
        const int first = SLAB * slab + UNIT * u;
#pragma unroll
        for (int i = 0; i < UNIT; i++) r.x[i] = first + i < k ? ((const float*)row)[first + i] : 0.0f;
    }
};

template <class F, bool EXACT>
DEVICE void decode_run(float (&w)[RUN], const F32::Raw& raw, int, int run, float scale, F32) {
#pragma unroll
    for (int i = 0; i < RUN; i++) w[i] = raw.x[16 * run + i] * scale;
}

template <class F, bool EXACT>
DEVICE void decode(float (&w)[RUN], const typename F::Raw& raw, int slab, int run, float scale) {
    decode_run<F, EXACT>(w, raw, slab, run, scale, F());
}

// `load`, or a unit of zeros past the end of the row: a row of 32-element blocks may end there.
template <class F>
DEVICE void load_unit(typename F::Raw& r, const u8* row, int slab, int u, int k) {
    if (F::ELEMS == 32 && SLAB * slab + UNIT * u >= k) {
        r = typename F::Raw{};
        return;
    }
    F::load(r, row, slab, u, k);
}

#endif
