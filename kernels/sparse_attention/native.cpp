// Attention over chosen rows with a sink (formula: kernels/sparse_attention/__init__.py). Keys are read where they lie,
// row after row of queries; what a bias hides is not read at all. A query's result is one chain of operations in the
// order of its keys, whatever queries are beside it.
#include <algorithm>
#include <vector>

#include "../native/simd.h"

using namespace galley;

namespace {

constexpr int HEADS = 4;  // of which a key's products are held in registers

inline void scores(const float *q, const float *key, int64_t heads, int64_t channels, float scale, float *out,
                   int64_t stride) {
    int64_t h = 0;
    for (; h + HEADS <= heads; h += HEADS) {
        F total[HEADS] = {};
        for (int64_t i = 0; i < channels; i += LANES) {
            const F x = load(key + i);
            for (int j = 0; j < HEADS; ++j) total[j] += x * load(q + (h + j) * channels + i);
        }
        for (int j = 0; j < HEADS; ++j) out[(h + j) * stride] = sum(total[j]) * scale;
    }
    for (; h < heads; ++h) {
        F total{};
        for (int64_t i = 0; i < channels; i += LANES) total += load(key + i) * load(q + h * channels + i);
        out[h * stride] = sum(total) * scale;
    }
}

// Softmax weights of `count` scores in place, the sink in the denominator; `count` is padded to whole vectors.
inline void weigh(float *s, int64_t count, int64_t padded, float sink) {
    for (int64_t k = count; k < padded; ++k) s[k] = -INFINITY;
    F top = splat(sink);
    for (int64_t k = 0; k < padded; k += LANES) top = max(top, load(s + k));
    const F peak = splat(largest(top));
    F total{};
    for (int64_t k = 0; k < padded; k += LANES) {
        const F w = exponential(load(s + k) - peak);
        store(s + k, w);
        total += w;
    }
    const float inverse = 1.0f / (sum(total) + sum(exponential(splat(sink) - peak)) / LANES);
    for (int64_t k = 0; k < padded; k += LANES) store(s + k, load(s + k) * inverse);
}

}  // namespace

extern "C" {

// rows: [N, channels] with index [queries, width], or [queries, width, channels] without.
struct galley_source {
    const float *rows;
    const int64_t *index;
    int64_t width;
};

// queries and out [queries, heads, channels], bias [queries, all widths]; channels are whole vectors.
void galley_sparse_attention(const float *queries, int64_t count, int64_t heads, int64_t channels,
                             const galley_source *sources, int64_t source_count, const float *bias, const float *sink,
                             float scale, float *out, int64_t threads) {
    int64_t width = 0;
    for (int64_t s = 0; s < source_count; ++s) width += sources[s].width;
    const int64_t padded = (width + LANES - 1) / LANES * LANES;
#pragma omp parallel num_threads(threads) if (threads > 1 && count > 1)
    {
        std::vector<float> weights(heads * padded);
        std::vector<const float *> keys(width);
#pragma omp for schedule(static)
        for (int64_t t = 0; t < count; ++t) {
            const float *q = queries + t * heads * channels, *b = bias + t * width;
            float *o = out + t * heads * channels;
            int64_t seen = 0;
            for (int64_t s = 0; s < source_count; b += sources[s].width, ++s) {
                const galley_source &source = sources[s];
                for (int64_t k = 0; k < source.width; ++k) {
                    if (b[k] == -INFINITY) continue;
                    const int64_t place = t * source.width + k;
                    keys[seen++] = source.rows + (source.index ? source.index[place] : place) * channels;
                }
            }
            for (int64_t k = 0; k < seen; ++k)
                scores(q, keys[k], heads, channels, scale, weights.data() + k, padded);
            const int64_t used = (seen + LANES - 1) / LANES * LANES;
            std::fill(o, o + heads * channels, 0.0f);
            for (int64_t h = 0; h < heads; ++h) weigh(weights.data() + h * padded, seen, used, sink[h]);
            for (int64_t k = 0; k < seen; ++k)
                for (int64_t h = 0; h < heads; ++h) {
                    const F w = splat(weights[h * padded + k]);
                    float *to = o + h * channels;
                    for (int64_t i = 0; i < channels; i += LANES) store(to + i, load(to + i) + w * load(keys[k] + i));
                }
        }
    }
}

}  // extern "C"
