// Index scores and their best positions, straight from packed keys (rules: kernels/index_selection/__init__.py).
//
// Keys and rounded queries are e2m1 codes times powers of two, so that products of 32 channels are exact in integers.
// Keys become tiles of 8, a byte 2 * value + 12 (0 to 24) for each channel, four channels of a key side by side: a query's
// four channels, repeated, meet 8 keys in one multiplication, and no lane has to be added to another. A row's result is
// one chain of operations in the order of positions, whatever rows are beside it.
#include <algorithm>
#include <functional>
#include <vector>

#include "../native/simd.h"

using namespace galley;

namespace {

constexpr int KEYS = 8, GROUP = 32, QUADS = GROUP / 4, TILE_BYTES = GROUP * KEYS, BIAS = 12;
typedef float F8 __attribute__((vector_size(KEYS * 4)));
typedef int32_t I8 __attribute__((vector_size(KEYS * 4)));

// Both channels of a packed byte, biased: the low nibble's first.
struct Pairs {
    uint8_t values[256][2];
    Pairs() {
        const int doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
        for (int byte = 0; byte < 256; ++byte)
            for (int half = 0; half < 2; ++half) {
                const int code = (byte >> (4 * half)) & 15, value = doubled[code & 7];
                values[byte][half] = uint8_t(BIAS + (code & 8 ? -value : value));
            }
    }
};
const Pairs PAIRS;

// ue8m0: byte b is 2^(b-127); 0 is the subnormal 2^-127.
inline float power(uint8_t b) {
    const uint32_t bits = b ? uint32_t(b) << 23 : 1u << 22;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// One row's queries: codes [heads, channels], and by head and group their scale (over 4, for two doubled factors) and
// what the keys' bias adds.
struct Query {
    std::vector<int8_t> codes;
    std::vector<float> scale;
    std::vector<int32_t> bias;

    Query(int64_t heads, int64_t groups)
        : codes(heads * groups * GROUP), scale(heads * groups), bias(heads * groups) {}

    void take(const float *x) {
        for (size_t g = 0; g < scale.size(); ++g, x += GROUP) {
            float top = 0;
            for (int i = 0; i < GROUP; ++i) top = std::max(top, std::fabs(x[i]));
            // The largest is 4 or 6 times a power of two, which divides all others at least to halves.
            int exponent = 0;
            if (top > 0) std::frexp(top, &exponent);
            const double doubled = std::ldexp(1.0, 4 - exponent);
            int32_t total = 0;
            for (int i = 0; i < GROUP; ++i) {
                const int code = int(std::lrint(x[i] * doubled));
                codes[g * GROUP + i] = int8_t(code);
                total += code;
            }
            scale[g] = std::ldexp(0.25f, exponent - 3);
            bias[g] = -BIAS * total;
        }
    }
};

// Integer products of 8 keys with a head's channels of one group.
inline I8 products(const uint8_t *tile, const int8_t *query, int32_t start) {
    I8 total = I8{} + start;
#if defined(__AVX2__)
    __m256i sum = _mm256_setzero_si256();
    for (int c = 0; c < QUADS; ++c) {
        int32_t four;
        std::memcpy(&four, query + 4 * c, 4);
        const __m256i keys = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(tile + c * 4 * KEYS));
        // Pairs are at most 576, and eight of them are added: int16 holds both.
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(keys, _mm256_set1_epi32(four)));
    }
    const __m256i whole = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    I8 added;
    std::memcpy(&added, &whole, sizeof added);
    return total + added;
#else
    for (int c = 0; c < QUADS; ++c)
        for (int k = 0; k < KEYS; ++k)
            for (int i = 0; i < 4; ++i) total[k] += int(tile[(c * KEYS + k) * 4 + i]) * query[4 * c + i];
    return total;
#endif
}

// Scores of the 8 keys of a tile. They begin at +0, so that none becomes -0.
inline F8 score(const uint8_t *codes, const float *scales, const Query &query, const float *weights, int64_t heads,
                int64_t groups) {
    F8 total{};
    for (int64_t h = 0; h < heads; ++h) {
        F8 product{};
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t part = h * groups + g;
            F8 scale;
            std::memcpy(&scale, scales + g * KEYS, sizeof scale);
            const I8 exact = products(codes + g * TILE_BYTES, query.codes.data() + part * GROUP, query.bias[part]);
            product += __builtin_convertvector(exact, F8) * (scale * query.scale[part]);
        }
        total += weights[h] * (product > 0 ? product : F8{});
    }
    return total;
}

// The `count` best of values that come by ascending position; a later one that is only as good is not better.
class Best {
  public:
    explicit Best(int64_t count) : count_(count), room_(2 * count + 64) { kept_.reserve(room_); }

    void clear() {
        kept_.clear();
        threshold_ = -INFINITY;
    }

    float threshold() const { return threshold_; }

    void offer(float value, int64_t position) {
        if (!(value > threshold_)) return;
        int32_t bits;
        std::memcpy(&bits, &value, 4);
        // Ordered as unsigned integers are, with the position's complement below: all different.
        const uint32_t ordered = uint32_t(bits ^ ((bits >> 31) & 0x7fffffff)) ^ 0x80000000u;
        kept_.push_back(uint64_t(ordered) << 32 | (0xffffffffu - uint32_t(position)));
        if (int64_t(kept_.size()) == room_) shrink();
    }

    // Positions ascending, then -1.
    template <typename T> void positions(T *out, int64_t width) {
        if (int64_t(kept_.size()) > count_) shrink();
        const int64_t found = std::min(int64_t(kept_.size()), width);
        for (int64_t i = 0; i < found; ++i) out[i] = T(0xffffffffu - uint32_t(kept_[i]));
        std::sort(out, out + found);
        std::fill(out + found, out + width, T(-1));
    }

  private:
    void shrink() {
        std::nth_element(kept_.begin(), kept_.begin() + count_ - 1, kept_.end(), std::greater<uint64_t>());
        kept_.resize(count_);
        const int32_t bits = int32_t(uint32_t(kept_.back() >> 32) ^ 0x80000000u);
        const int32_t plain = bits ^ ((bits >> 31) & 0x7fffffff);
        std::memcpy(&threshold_, &plain, 4);
    }

    int64_t count_, room_;
    float threshold_ = -INFINITY;
    std::vector<uint64_t> kept_;
};

inline bool any_above(F8 values, float threshold) {
    const I8 above = values > threshold;
    uint64_t words[KEYS / 2];
    std::memcpy(words, &above, sizeof words);
    return words[0] | words[1] | words[2] | words[3];
}

}  // namespace

extern "C" {

// Keys of the runs from their pages: run r has counts[r] of them, in the blocks tables[r * table_width ...] of
// block_rows each, and its tiles begin at tile first[r]. codes [tiles, groups, 8 quads, 8 keys, 4], scales [tiles, groups,
// 8 keys]; both are zeros beforehand.
void galley_index_tiles(const uint8_t *data, const uint8_t *scale_bytes, int64_t data_block, int64_t data_row,
                        int64_t scales_block, int64_t scales_row, int64_t groups, int64_t runs, const int64_t *counts,
                        const int64_t *first, const int64_t *tables, int64_t table_width, int64_t block_rows,
                        uint8_t *codes, float *scales, int64_t threads) {
    for (int64_t r = 0; r < runs; ++r) {
        const int64_t *table = tables + r * table_width;
        const int64_t tiles = (counts[r] + KEYS - 1) / KEYS;
#pragma omp parallel for num_threads(threads) if (threads > 1 && tiles > 64)
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t base = (first[r] + t) * groups;
            for (int64_t j = t * KEYS; j < std::min(counts[r], (t + 1) * KEYS); ++j) {
                const int64_t block = table[j / block_rows], row = j % block_rows, lane = j % KEYS;
                const uint8_t *from = data + block * data_block + row * data_row;
                const uint8_t *power_of = scale_bytes + block * scales_block + row * scales_row;
                for (int64_t g = 0; g < groups; ++g, from += GROUP / 2) {
                    uint8_t *to = codes + (base + g) * TILE_BYTES + lane * 4;
                    for (int i = 0; i < GROUP / 2; ++i)
                        std::memcpy(to + (i / 2) * 4 * KEYS + (i % 2) * 2, PAIRS.values[from[i]], 2);
                    scales[(base + g) * KEYS + lane] = power(power_of[g]);
                }
            }
        }
    }
}

// For each row t: the `count` best of the visible[t] first keys of run owner[t], ascending, then -1: selection [rows,
// width]. With `allowed` (int32 [rows, blocks], ascending, then -1) only the keys of those blocks of block_size are
// looked at; with `found` the best `blocks` blocks are left there, the newest always among them.
void galley_index_select(const float *queries, const float *weights, int64_t rows, int64_t heads, int64_t groups,
                         const uint8_t *codes, const float *scales, const int64_t *first, const int64_t *owner,
                         const int64_t *visible, int64_t count, int64_t width, int64_t *selection, int64_t block_size,
                         int64_t blocks, const int32_t *allowed, int32_t *found, int64_t threads) {
#pragma omp parallel num_threads(threads) if (threads > 1 && rows > 1)
    {
        Query query(heads, groups);
        Best best(count), best_blocks(std::max<int64_t>(blocks, 1));
        std::vector<float> line;
#pragma omp for schedule(dynamic, 4)
        for (int64_t t = 0; t < rows; ++t) {
            const int64_t seen = visible[t];
            int64_t *out = selection + t * width;
            if (seen <= count && !found) {
                // All of them: candidates hold at least `count` positions, so they are among those too.
                for (int64_t j = 0; j < width; ++j) out[j] = j < seen ? j : -1;
                continue;
            }
            query.take(queries + t * heads * groups * GROUP);
            const float *w = weights + t * heads;
            const auto tile = [&](int64_t number) {
                const int64_t at = (first[owner[t]] + number) * groups;
                return score(codes + at * TILE_BYTES, scales + at * KEYS, query, w, heads, groups);
            };
            best.clear();
            if (allowed) {
                int64_t current = -1;
                F8 scores{};
                for (int64_t b = 0; b < blocks && allowed[t * blocks + b] >= 0; ++b) {
                    const int64_t begin = allowed[t * blocks + b] * block_size;
                    for (int64_t j = begin; j < std::min(begin + block_size, seen); ++j) {
                        if (j / KEYS != current) scores = tile(current = j / KEYS);
                        best.offer(scores[j % KEYS], j);
                    }
                }
            } else {
                const int64_t tiles = (seen + KEYS - 1) / KEYS;
                if (found) line.resize(tiles * KEYS);
                for (int64_t i = 0; i < tiles; ++i) {
                    const F8 scores = tile(i);
                    if (found) std::memcpy(line.data() + i * KEYS, &scores, sizeof scores);
                    if (!any_above(scores, best.threshold())) continue;
                    for (int64_t j = i * KEYS; j < std::min(seen, (i + 1) * KEYS); ++j)
                        best.offer(scores[j - i * KEYS], j);
                }
            }
            best.positions(out, width);
            if (!found) continue;
            best_blocks.clear();
            for (int64_t b = 0; b * block_size < seen; ++b) {
                const int64_t end = std::min(seen, (b + 1) * block_size);
                float top = end == seen ? INFINITY : -INFINITY;
                for (int64_t j = b * block_size; j < end; ++j) top = std::max(top, line[j]);
                best_blocks.offer(top, b);
            }
            best_blocks.positions(found + t * blocks, blocks);
        }
    }
}

}  // extern "C"
