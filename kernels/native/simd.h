// Vectors of floats and what the kernels do with them. Compiled for the machine it runs on (-march=native): sixteen
// lanes with AVX-512, eight otherwise (where even AVX is missing, the compiler splits them).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace galley {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

typedef float F __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef uint16_t H __attribute__((vector_size(LANES * 2)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));

struct bf16 {
    uint16_t bits;
};

static inline F splat(float x) { return F{} + x; }

static inline F load(const float *p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

static inline F load(const bf16 *p) {
    H h;
    std::memcpy(&h, p, sizeof h);
    U u = __builtin_convertvector(h, U) << 16;
    F v;
    std::memcpy(&v, &u, sizeof v);
    return v;
}

static inline void store(float *p, F v) { std::memcpy(p, &v, sizeof v); }

static inline void put(float *p, float x) { *p = x; }

// Round to nearest even, as torch does; a NaN stays one.
static inline void put(bf16 *p, float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    p->bits = x != x ? 0x7fc0 : static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline F select(I mask, F a, F b) { return mask ? a : b; }
static inline F max(F a, F b) { return a > b ? a : b; }
static inline F abs(F a) { return a < 0 ? -a : a; }

// Lanes are combined in one fixed order, always.
static inline float sum(F v) {
    float x[LANES];
    std::memcpy(x, &v, sizeof x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) x[i] += x[i + width];
    return x[0];
}

static inline float largest(F v) {
    float x[LANES];
    std::memcpy(x, &v, sizeof x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return x[0];
}

static inline I round_to_int(F x) {
    // Beside 1.5 * 2^23 a float counts in ones: the nearest integer (|x| < 2^22), ties to even, is in its low bits.
    const F shift = splat(12582912.0f);
    F shifted = x + shift;
    I bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return bits - 0x4b400000;
}

// e^x, relative error below 2e-7; exactly 0 below -87 and for -infinity, NaN stays NaN. Range reduction by ln 2 in two
// parts, then the Taylor polynomial of degree 7 on [-ln 2 / 2, ln 2 / 2].
static inline F exponential(F x) {
    const F low = splat(-87.0f), high = splat(88.0f);
    F y = x < low ? low : (x > high ? high : x);
    const F shift = splat(12582912.0f);
    F n = (y * 1.44269504088896341f + shift) - shift;
    F r = y - n * 0.693359375f + n * 2.12194440e-4f;
    F p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    I power = (__builtin_convertvector(n, I) + 127) << 23;
    F scale;
    std::memcpy(&scale, &power, sizeof scale);
    return select(x < low, F{}, p * scale);
}

}  // namespace galley
