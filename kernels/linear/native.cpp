// Linear layers over rows: out[r][j] (+)= sum_k f(x)[r][k] * w[j][k].
//
// Weights lie in panels of 16 outputs: for each step along k, the 16 outputs' values side by side. A tile of up to
// MAX_ROWS rows by one panel is held in registers while k runs from front to back. So a row's result is one chain of
// operations in a fixed order, the same in whatever tile it lies: rows do not depend on each other to the bit.
//
// int8 weights meet rows of int16 (one scale per row): products of pairs are added up in int32, exactly. Without
// dot-product instructions this is as fast as int8 rows would be, and loses 2^-13 of a row's largest value instead of
// 2^-7. `levels` says how finely rows are cut: 8191 (w8), 127 (w8a8).
#include <algorithm>
#include <vector>

#include "../native/simd.h"

using namespace galley;

namespace {

constexpr int PANEL = 16;
constexpr int PARTS = PANEL / LANES;
constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;
// 2048 products of 127 * 8191 stay below 2^31.
constexpr int64_t INT_CHUNK = 2048;

struct F16 {
    F part[PARTS];
};

template <class Stored>
struct FloatKind {
    using X = float;
    using W = Stored;
    using Acc = F16;
    static constexpr int STEP = 1;
    static constexpr int64_t CHUNK = INT64_MAX;

    static F16 weights(const float *w) {
        F16 v;
        for (int i = 0; i < PARTS; ++i) v.part[i] = load(w + i * LANES);
        return v;
    }
    // Outputs i and i + 8 share a word, so that a shift and a mask make floats of both.
    static F16 weights(const bf16 *w) {
        typedef uint32_t Words __attribute__((vector_size(32)));
        Words words;
        std::memcpy(&words, w, sizeof words);
        Words halves[2] = {words << 16, words & 0xffff0000u};
        F16 v;
        std::memcpy(&v, halves, sizeof v);
        return v;
    }
    static void mac(Acc &acc, const F16 &w, const X *x) {
        for (int i = 0; i < PARTS; ++i) acc.part[i] += w.part[i] * *x;
    }
    static F16 result(const Acc &acc) { return acc; }
};

#if defined(__AVX512BW__)
struct IntWeights {
    __m512i pairs;
};
struct IntAcc {
    __m512i sums = _mm512_setzero_si512();
};
inline IntWeights int_weights(const int8_t *w) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(w)))};
}
inline void int_mac(IntAcc &acc, const IntWeights &w, const int16_t *two) {
    int32_t pair;
    std::memcpy(&pair, two, 4);
#if defined(__AVX512VNNI__)
    acc.sums = _mm512_dpwssd_epi32(acc.sums, w.pairs, _mm512_set1_epi32(pair));
#else
    acc.sums = _mm512_add_epi32(acc.sums, _mm512_madd_epi16(w.pairs, _mm512_set1_epi32(pair)));
#endif
}
inline F16 int_result(const IntAcc &acc) {
    F16 v;
    __m512 f = _mm512_cvtepi32_ps(acc.sums);
    std::memcpy(&v, &f, sizeof v);
    return v;
}
#elif defined(__AVX2__)
struct IntWeights {
    __m256i low, high;
};
struct IntAcc {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
};
inline IntWeights int_weights(const int8_t *w) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w))),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w + 16)))};
}
// In assembly because compilers start all products of a step before they add the first, run out of the 16 registers that
// six rows need exactly, and spill sums: half the speed.
inline void int_mac(IntAcc &acc, const IntWeights &w, const int16_t *pair) {
    typedef int32_t Pair __attribute__((may_alias, aligned(2)));
    __m256i low = acc.low, high = acc.high, x, product;
    asm("vpbroadcastd %[pair], %[x]\n\t"
        "vpmaddwd %[wl], %[x], %[product]\n\t"
        "vpaddd %[product], %[low], %[low]\n\t"
        "vpmaddwd %[wh], %[x], %[x]\n\t"
        "vpaddd %[x], %[high], %[high]"
        : [low] "+x"(low), [high] "+x"(high), [x] "=&x"(x), [product] "=&x"(product)
        : [pair] "m"(*reinterpret_cast<const Pair *>(pair)), [wl] "x"(w.low), [wh] "x"(w.high));
    acc.low = low;
    acc.high = high;
}
inline F16 int_result(const IntAcc &acc) {
    F16 v;
    __m256 f[2] = {_mm256_cvtepi32_ps(acc.low), _mm256_cvtepi32_ps(acc.high)};
    std::memcpy(&v, f, sizeof v);
    return v;
}
#else
struct IntWeights {
    const int8_t *w;
};
struct IntAcc {
    int32_t sums[PANEL] = {};
};
inline IntWeights int_weights(const int8_t *w) { return {w}; }
inline void int_mac(IntAcc &acc, const IntWeights &w, const int16_t *x) {
    for (int j = 0; j < PANEL; ++j) acc.sums[j] += w.w[2 * j] * x[0] + w.w[2 * j + 1] * x[1];
}
inline F16 int_result(const IntAcc &acc) {
    float f[PANEL];
    for (int j = 0; j < PANEL; ++j) f[j] = static_cast<float>(acc.sums[j]);
    F16 v;
    std::memcpy(&v, f, sizeof v);
    return v;
}
#endif

struct IntKind {
    using X = int16_t;
    using W = int8_t;
    using Acc = IntAcc;
    static constexpr int STEP = 2;
    static constexpr int64_t CHUNK = INT_CHUNK;

    static IntWeights weights(const W *w) { return int_weights(w); }
    static void mac(Acc &acc, const IntWeights &w, const X *x) { int_mac(acc, w, x); }
    static F16 result(const Acc &acc) { return int_result(acc); }
};

enum Prologue { PLAIN = 0, RMS_NORM = 1, SILU_MUL = 2 };

struct Call {
    const void *weights;
    const float *weight_scales;  // [m], int8 only
    int64_t outputs, inputs;     // m, k
    int64_t format;              // 0 float32, 1 bfloat16, 2 int8
    int64_t levels;
};

// One row through the prologue, as floats. `row` is [k], or [2 k] for SILU_MUL (gate, then up).
void prepare_floats(const float *row, int64_t k, int prologue, const float *norm, float eps, float *to) {
    int64_t whole = k / LANES * LANES;
    if (prologue == RMS_NORM) {
        F squares{};
        for (int64_t i = 0; i < whole; i += LANES) squares += load(row + i) * load(row + i);
        float total = sum(squares);
        for (int64_t i = whole; i < k; ++i) total += row[i] * row[i];
        float factor = 1.0f / std::sqrt(total / k + eps);
        for (int64_t i = 0; i < whole; i += LANES) store(to + i, load(row + i) * factor * load(norm + i));
        for (int64_t i = whole; i < k; ++i) to[i] = row[i] * factor * norm[i];
    } else if (prologue == SILU_MUL) {
        for (int64_t i = 0; i < whole; i += LANES) {
            F gate = load(row + i);
            store(to + i, gate / (1.0f + exponential(-gate)) * load(row + k + i));
        }
        for (int64_t i = whole; i < k; ++i) to[i] = row[i] / (1.0f + std::exp(-row[i])) * row[k + i];
    } else {
        std::memcpy(to, row, k * sizeof(float));
    }
}

// To int16 with one scale; returns it. A row that is not finite gets the scale NaN, so that its results are.
float quantise(const float *row, int64_t k, int64_t padded, float levels, int16_t *to) {
    int64_t whole = k / LANES * LANES;
    F peaks{}, faults{};
    for (int64_t i = 0; i < whole; i += LANES) {
        F x = load(row + i);
        peaks = max(abs(x), peaks);
        faults += x * 0.0f;
    }
    float peak = largest(peaks), fault = sum(faults);
    for (int64_t i = whole; i < k; ++i) {
        peak = std::max(peak, std::fabs(row[i]));
        fault += row[i] * 0.0f;
    }
    float inverse = peak > 0 && fault == 0 ? levels / peak : 0.0f;
    for (int64_t i = 0; i < whole; i += LANES) {
        I rounded = round_to_int(load(row + i) * inverse);
        typedef int16_t S __attribute__((vector_size(LANES * 2)));
        S narrow = __builtin_convertvector(rounded, S);
        std::memcpy(to + i, &narrow, sizeof narrow);
    }
    for (int64_t i = whole; i < k; ++i) to[i] = static_cast<int16_t>(std::nearbyint(row[i] * inverse));
    for (int64_t i = k; i < padded; ++i) to[i] = 0;
    return peak / levels + fault;
}

// The sums of ROWS rows; nested instead of an array, which compilers would keep in memory.
template <class K, int ROWS>
struct Sums {
    typename K::Acc head{};
    Sums<K, ROWS - 1> rest;

    template <class Weights>
    __attribute__((always_inline)) void mac(const Weights &weights, const typename K::X *x, int64_t stride) {
        K::mac(head, weights, x);
        rest.mac(weights, x + stride, stride);
    }
    __attribute__((always_inline)) void finish(float *out, bool first) const {
        F16 v = K::result(head);
        for (int i = 0; i < PARTS; ++i) store(out + i * LANES, first ? v.part[i] : load(out + i * LANES) + v.part[i]);
        rest.finish(out + PANEL, first);
    }
};

template <class K>
struct Sums<K, 0> {
    template <class Weights>
    void mac(const Weights &, const typename K::X *, int64_t) {}
    void finish(float *, bool) const {}
};

template <class K, int ROWS>
void tile(const typename K::X *x, int64_t x_stride, const typename K::W *w, int64_t steps, float *out, bool first) {
    Sums<K, ROWS> sums;
    for (int64_t s = 0; s < steps; ++s)
        sums.mac(K::weights(w + s * PANEL * K::STEP), x + s * K::STEP, x_stride);
    sums.finish(out, first);
}

template <class K>
using Tile = void (*)(const typename K::X *, int64_t, const typename K::W *, int64_t, float *, bool);

template <class K, int ROWS = MAX_ROWS>
Tile<K> tile_of(int rows) {
    if constexpr (ROWS == 0) {
        return nullptr;
    } else {
        return rows == ROWS ? &tile<K, ROWS> : tile_of<K, ROWS - 1>(rows);
    }
}

// `rows` over `tiles` tiles, as even as can be: where tile t begins.
inline int64_t tile_start(int64_t rows, int64_t tiles, int64_t t) { return rows * t / tiles; }

template <class K>
void put_row(const float *values, const float *scales, float scale, float *to, bool add) {
    for (int i = 0; i < PANEL; i += LANES) {
        F v = load(values + i);
        if (K::STEP == 2) v = v * (load(scales + i) * scale);
        store(to + i, add ? load(to + i) + v : v);
    }
}

template <class K>
void panel(const Call &call, int64_t p, const typename K::X *x, int64_t x_stride, const float *x_scales, int64_t rows,
           float *out, int64_t out_stride, bool add) {
    int64_t steps = x_stride / K::STEP, chunk = K::CHUNK / K::STEP;
    const typename K::W *w = static_cast<const typename K::W *>(call.weights) + p * PANEL * x_stride;
    int64_t first = p * PANEL, width = std::min<int64_t>(PANEL, call.outputs - first);
    int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
    float scales[PANEL] = {};
    if (K::STEP == 2) std::memcpy(scales, call.weight_scales + first, width * sizeof(float));
    for (int64_t t = 0; t < tiles; ++t) {
        int64_t from = tile_start(rows, tiles, t), count = tile_start(rows, tiles, t + 1) - from;
        alignas(64) float buffer[MAX_ROWS * PANEL];
        Tile<K> run = tile_of<K>(static_cast<int>(count));
        for (int64_t s = 0; s < steps; s += chunk)
            run(x + from * x_stride + s * K::STEP, x_stride, w + s * K::STEP * PANEL, std::min(chunk, steps - s),
                buffer, s == 0);
        for (int64_t r = 0; r < count; ++r) {
            float *to = out + (from + r) * out_stride + first;
            if (width == PANEL) {
                put_row<K>(buffer + r * PANEL, scales, K::STEP == 2 ? x_scales[from + r] : 1.0f, to, add);
            } else {
                float edge[PANEL] = {};
                std::memcpy(edge, to, add ? width * sizeof(float) : 0);
                put_row<K>(buffer + r * PANEL, scales, K::STEP == 2 ? x_scales[from + r] : 1.0f, edge, add);
                std::memcpy(to, edge, width * sizeof(float));
            }
        }
    }
}

template <class K>
void run(const Call &call, const float *x, int64_t rows, int64_t x_row, int prologue, const float *norm, float eps,
         float *out, int64_t out_stride, bool add, int threads) {
    constexpr bool INT = K::STEP == 2;
    constexpr int64_t ROW_BLOCK = 16 * MAX_ROWS;
    int64_t k = call.inputs, padded = (k + K::STEP - 1) / K::STEP * K::STEP;
    bool copies = INT || prologue != PLAIN || x_row != k;
    static thread_local std::vector<char> prepared_bytes;
    static thread_local std::vector<float> scales;
    if (copies) prepared_bytes.resize(std::max(prepared_bytes.size(), rows * padded * sizeof(typename K::X) + 64));
    scales.resize(std::max<size_t>(scales.size(), rows));
    auto *prepared = reinterpret_cast<typename K::X *>((reinterpret_cast<uintptr_t>(prepared_bytes.data()) + 63) / 64 * 64);
    float *row_scales = scales.data();
    int64_t panels = (call.outputs + PANEL - 1) / PANEL;
    int64_t blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    // Enough jobs for the threads to end together, long enough runs of panels to read memory in order.
    int64_t group = std::clamp<int64_t>(panels / (threads * 4), 1, 64);
    int64_t groups = (panels + group - 1) / group;

#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        if (copies) {
            std::vector<float> row(INT ? k : 0);
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; ++r) {
                const float *from = x + r * x_row;
                if constexpr (INT) {
                    if (prologue != PLAIN) {
                        prepare_floats(from, k, prologue, norm, eps, row.data());
                        from = row.data();
                    }
                    row_scales[r] = quantise(from, k, padded, static_cast<float>(call.levels), prepared + r * padded);
                } else {
                    prepare_floats(from, k, prologue, norm, eps, prepared + r * padded);
                }
            }
        }
        const typename K::X *ready = prepared;
        if constexpr (!INT) {
            if (!copies) ready = x;
        }
#pragma omp for schedule(dynamic) nowait
        for (int64_t job = 0; job < blocks * groups; ++job) {
            int64_t first = job / groups * ROW_BLOCK, count = std::min(ROW_BLOCK, rows - first);
            int64_t begin = job % groups * group, end = std::min(begin + group, panels);
            for (int64_t p = begin; p < end; ++p)
                panel<K>(call, p, ready + first * padded, padded, row_scales + first, count, out + first * out_stride,
                         out_stride, add);
        }
    }
}

}  // namespace

extern "C" void galley_linear(const Call *call, const float *x, int64_t rows, int64_t x_row, int64_t prologue,
                              const float *norm, float eps, float *out, int64_t out_stride, int64_t add,
                              int64_t threads) {
    auto go = [&](auto kind) {
        run<decltype(kind)>(*call, x, rows, x_row, static_cast<int>(prologue), norm, eps, out, out_stride, add != 0,
                            static_cast<int>(threads));
    };
    if (call->format == 0) go(FloatKind<float>{});
    else if (call->format == 1) go(FloatKind<bf16>{});
    else go(IntKind{});
}

// Floats in a vector: how the library was compiled.
extern "C" int galley_lanes() { return LANES; }
