// Cache rows in packed formats, written to and read from pools where they lie (rules: kernels/quantization/reference.py;
// the codes are the same to the bit).
#include <algorithm>

#include "../native/simd.h"

using namespace galley;

namespace {

enum Format { E4M3_POW2_32 = 1, E2M1_E4M3_16 = 2, E2M1_POW2_32 = 3 };

const float MAGNITUDES[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};

inline uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}

inline float float_of(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}

// ue8m0: byte b is 2^(b-127); 0 is the subnormal 2^-127, 255 is not a number.
inline float power(uint8_t b) {
    if (b == 255) return NAN;
    return b ? float_of(uint32_t(b) << 23) : float_of(1u << 22);
}

// The byte of the least power of two that is not below x > 0.
inline uint8_t power_above(float x) {
    int exponent;
    float mantissa = std::frexp(x, &exponent);  // x = mantissa * 2^exponent, mantissa in [0.5, 1)
    if (mantissa == 0.5f) --exponent;
    return uint8_t(std::min(std::max(exponent + 127, 0), 254));
}

// Round to nearest even; magnitudes above 448 become 448. Steps are 2^-9 below 2^-6, then eight to each power of two.
inline uint8_t e4m3_code(float x) {
    const uint32_t sign = (bits_of(x) >> 24) & 0x80;
    const float a = std::min(std::fabs(x), 448.0f);
    if (a < 0.015625f) return uint8_t(sign | uint32_t(std::nearbyint(a * 512.0f)));
    uint32_t u = bits_of(a);
    u += 0x7ffff + ((u >> 20) & 1);
    return uint8_t(sign | ((u >> 20) - (120u << 3)));
}

struct E4m3Table {
    float values[256];
    E4m3Table() {
        for (int code = 0; code < 256; ++code) {
            const int exponent = (code >> 3) & 15, mantissa = code & 7;
            float x = exponent ? std::ldexp(1.0f + mantissa / 8.0f, exponent - 7) : std::ldexp(float(mantissa), -9);
            if ((code & 127) == 127) x = NAN;
            values[code] = code & 128 ? -x : x;
        }
    }
};
const E4m3Table E4M3;

// Half-way cases go to the even code.
inline uint8_t e2m1_code(float x) {
    const float a = std::fabs(x);
    const uint8_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return code | uint8_t((bits_of(x) >> 28) & 8);
}

// Magnitudes compare as their bits do, with infinity and NaN above all others: neither is lost on the way.
inline float largest_magnitude(const float *x, int count) {
    uint32_t top = 0;
    for (int i = 0; i < count; ++i) top = std::max(top, bits_of(x[i]) & 0x7fffffff);
    return float_of(top);
}

void encode_row(int format, const float *x, int64_t channels, uint8_t *data, uint8_t *scales) {
    const int group = format == E2M1_E4M3_16 ? 16 : 32;
    for (int64_t g = 0; g * group < channels; ++g) {
        const float *v = x + g * group;
        const float top = largest_magnitude(v, group);
        if (!std::isfinite(top)) {  // the format has no infinity: a scale of NaN keeps the fault in sight
            scales[g] = format == E2M1_E4M3_16 ? 0x7f : 0xff;
            const int bytes = format == E4M3_POW2_32 ? group : group / 2;
            std::memset(data + g * bytes, 0, bytes);
            continue;
        }
        float scale;
        if (format == E4M3_POW2_32) {
            scales[g] = power_above(std::max(top, 1e-4f) / 448.0f);
            scale = power(scales[g]);
            for (int i = 0; i < group; ++i) data[g * group + i] = e4m3_code(v[i] / scale);
            continue;
        }
        if (format == E2M1_E4M3_16) {
            scales[g] = e4m3_code(std::min(std::max(top / 6.0f, 0.001953125f), 448.0f));
            scale = E4M3.values[scales[g]];
        } else {
            scales[g] = power_above(std::max(top, 6 * 1.1754943508222875e-38f) / 6.0f);
            scale = power(scales[g]);
        }
        for (int i = 0; i < group; i += 2)
            data[(g * group + i) / 2] = uint8_t(e2m1_code(v[i] / scale) | (e2m1_code(v[i + 1] / scale) << 4));
    }
}

void decode_row(int format, const uint8_t *data, const uint8_t *scales, int64_t channels, float *out) {
    const int group = format == E2M1_E4M3_16 ? 16 : 32;
    for (int64_t g = 0; g * group < channels; ++g) {
        const float scale = format == E2M1_E4M3_16 ? E4M3.values[scales[g]] : power(scales[g]);
        float *v = out + g * group;
        if (format == E4M3_POW2_32) {
            for (int i = 0; i < group; ++i) v[i] = E4M3.values[data[g * group + i]] * scale;
            continue;
        }
        for (int i = 0; i < group / 2; ++i) {
            const uint8_t pair = data[g * group / 2 + i];
            v[2 * i] = MAGNITUDES[pair & 15] * scale;
            v[2 * i + 1] = MAGNITUDES[pair >> 4] * scale;
        }
    }
}

}  // namespace

extern "C" {

// A pool's planes by block and row: `data` and `scales` with their strides in bytes.
struct galley_pool {
    uint8_t *data, *scales;
    int64_t data_block, data_row, scales_block, scales_row, channels, format;
};

// values [rows, channels] to the pool's places (block[i], row[i]); what they decode to, where `rounded` is given.
void galley_rows_write(const galley_pool *pool, const float *values, int64_t rows, const int64_t *block,
                       const int64_t *row, float *rounded) {
    for (int64_t i = 0; i < rows; ++i) {
        uint8_t *data = pool->data + block[i] * pool->data_block + row[i] * pool->data_row;
        uint8_t *scales = pool->scales + block[i] * pool->scales_block + row[i] * pool->scales_row;
        encode_row(int(pool->format), values + i * pool->channels, pool->channels, data, scales);
        if (rounded) decode_row(int(pool->format), data, scales, pool->channels, rounded + i * pool->channels);
    }
}

// out [rows, channels] from the pool's places.
void galley_rows_read(const galley_pool *pool, int64_t rows, const int64_t *block, const int64_t *row, float *out) {
    for (int64_t i = 0; i < rows; ++i)
        decode_row(int(pool->format), pool->data + block[i] * pool->data_block + row[i] * pool->data_row,
                   pool->scales + block[i] * pool->scales_block + row[i] * pool->scales_row, pool->channels,
                   out + i * pool->channels);
}

// values [rows, channels] as they come back from the format; out may be values.
void galley_rows_round(int64_t format, const float *values, int64_t rows, int64_t channels, float *out) {
    uint8_t data[32], scales[2];
    for (int64_t i = 0; i < rows * channels; i += 32) {
        encode_row(int(format), values + i, 32, data, scales);
        decode_row(int(format), data, scales, 32, out + i);
    }
}

}  // extern "C"
