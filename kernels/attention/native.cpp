// Causal grouped-query attention straight out of the paged cache, and the writing of rows into it.
//
// A block holds, per key/value head, its keys by channel, [channels, rows], and its values by row, [rows, channels]: both
// products then run along whole vectors. Keys are taken in tiles of 64 that begin at multiples of 64 of the absolute
// position, with a running maximum. Each query row goes through the same operations in the same order whatever shares
// its tile, step or batch, so its result is the same to the bit.
#include <algorithm>
#include <vector>

#include "../native/simd.h"

using namespace galley;

namespace {

constexpr int KEYS = 64;   // per tile
constexpr int STRIP = 16;  // keys, or channels, that a strip of registers holds
constexpr int PARTS = STRIP / LANES;
constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;
constexpr int ITEM_ROWS = 48;  // query rows that share a walk over the keys

struct Span {
    int64_t start, count, context;
    int64_t table;  // where its slots begin in the list of all slots
};

struct Geometry {
    int64_t heads, kv_heads, channels, block_rows;
    int64_t key_slot, value_slot;  // elements from one slot to the next
    int64_t query_row;             // elements from one row of queries to the next
};

struct F16 {
    F part[PARTS];
};

template <class T>
F16 load16(const T *p) {
    F16 v;
    for (int i = 0; i < PARTS; ++i) v.part[i] = load(p + i * LANES);
    return v;
}

// out[r][0..16) = scale * sum_c q[r][c] * keys[c][0..16)
template <class T, int ROWS>
void scores(const float *const *q, const T *keys, int64_t stride, int64_t channels, float scale, float *out) {
    F16 acc[ROWS] = {};
    for (int64_t c = 0; c < channels; ++c) {
        F16 k = load16(keys + c * stride);
        for (int r = 0; r < ROWS; ++r)
            for (int i = 0; i < PARTS; ++i) acc[r].part[i] += k.part[i] * q[r][c];
    }
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < PARTS; ++i) store(out + r * KEYS + i * LANES, acc[r].part[i] * scale);
}

// out[r][0..16) += sum_j weights[r][j] * values[j][0..16), j over `keys` rows of one block
template <class T, int ROWS>
void mix(const float *weights, const T *values, int64_t channels, int64_t keys, float *out) {
    F16 acc[ROWS];
    for (int r = 0; r < ROWS; ++r) acc[r] = load16(out + r * channels);
    for (int64_t j = 0; j < keys; ++j) {
        F16 v = load16(values + j * channels);
        for (int r = 0; r < ROWS; ++r)
            for (int i = 0; i < PARTS; ++i) acc[r].part[i] += v.part[i] * weights[r * KEYS + j];
    }
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < PARTS; ++i) store(out + r * channels + i * LANES, acc[r].part[i]);
}

struct Row {
    int64_t position;  // the last key it sees
    float peak, total;
};

// Where a tile's keys and values lie: strips of 16 keys in their blocks, or all of them unpacked side by side.
template <class T>
struct Source {
    const T *keys[KEYS / STRIP];
    int64_t key_stride;
    const T *values[KEYS / STRIP];
    int64_t run;  // keys whose values follow each other
};

// ROWS query rows over one tile of keys [first, first + live).
template <class T, int ROWS>
void tile(const float *const *q, Row *rows, float *out, const Source<T> &from, const Geometry &g, int64_t first,
          int64_t live, float scale) {
    alignas(64) float weights[ROWS * KEYS];
    for (int64_t j = 0; j < KEYS; j += STRIP) {
        if (j < live) {
            scores<T, ROWS>(q, from.keys[j / STRIP], from.key_stride, g.channels, scale, weights + j);
        } else {
            for (int r = 0; r < ROWS; ++r)
                for (int i = 0; i < STRIP; ++i) weights[r * KEYS + j + i] = -INFINITY;
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        float *w = weights + r * KEYS;
        int64_t visible = std::min(live, rows[r].position - first + 1);
        for (int64_t j = std::max<int64_t>(visible, 0); j < KEYS; ++j) w[j] = -INFINITY;
        F peaks = load(w);
        for (int j = LANES; j < KEYS; j += LANES) peaks = max(load(w + j), peaks);
        // A NaN among the scores must reach the result, and comparisons lose it: the weights below carry it on.
        float peak = std::max(rows[r].peak, largest(peaks));
        F total{};
        for (int j = 0; j < KEYS; j += LANES) {
            F p = exponential(load(w + j) - peak);
            total += p;
            store(w + j, p);
        }
        if (peak != rows[r].peak) {
            float keep = exponential(splat(rows[r].peak - peak))[0];
            rows[r].total *= keep;
            for (int64_t c = 0; c < g.channels; c += LANES)
                store(out + r * g.channels + c, load(out + r * g.channels + c) * keep);
            rows[r].peak = peak;
        }
        rows[r].total += sum(total);
    }
    for (int64_t c = 0; c < g.channels; c += STRIP)
        for (int64_t j = 0; j < live; j += from.run)
            mix<T, ROWS>(weights + j, from.values[j / STRIP] + c, g.channels, std::min(from.run, live - j), out + c);
}

template <class T>
using Tile = void (*)(const float *const *, Row *, float *, const Source<T> &, const Geometry &, int64_t, int64_t,
                      float);

template <class T, int ROWS = MAX_ROWS>
Tile<T> tile_of(int rows) {
    if constexpr (ROWS == 0) {
        return nullptr;
    } else {
        return rows == ROWS ? &tile<T, ROWS> : tile_of<T, ROWS - 1>(rows);
    }
}

template <class T>
Source<T> in_blocks(const T *keys, const T *values, const int64_t *slots, const Geometry &g, int64_t kv_head,
                    int64_t first, int64_t live) {
    Source<T> source{{}, g.block_rows, {}, STRIP};
    const int64_t head = kv_head * g.channels * g.block_rows;
    for (int64_t j = 0; j < live; j += STRIP) {
        int64_t slot = slots[(first + j) / g.block_rows], inside = (first + j) % g.block_rows;
        source.keys[j / STRIP] = keys + slot * g.key_slot + head + inside;
        source.values[j / STRIP] = values + slot * g.value_slot + head + inside * g.channels;
    }
    return source;
}

// The same as floats in `scratch` [2 * KEYS * channels]: worth it where several tiles of rows read them.
template <class T>
Source<float> unpacked(const Source<T> &packed, const Geometry &g, int64_t live, float *scratch) {
    Source<float> source{{}, KEYS, {}, KEYS};
    float *values = scratch + KEYS * g.channels;
    for (int64_t j = 0; j < live; j += STRIP) {
        for (int64_t c = 0; c < g.channels; ++c)
            for (int i = 0; i < STRIP; i += LANES)
                store(scratch + c * KEYS + j + i, load(packed.keys[j / STRIP] + c * packed.key_stride + i));
        for (int64_t at = 0; at < STRIP * g.channels; at += LANES)
            store(values + j * g.channels + at, load(packed.values[j / STRIP] + at));
        source.keys[j / STRIP] = scratch + j;
        source.values[j / STRIP] = values + j * g.channels;
    }
    return source;
}

template <class T>
void all_tiles(int64_t count, const float *const *q, Row *rows, float *result, const Source<T> &source,
               const Geometry &g, int64_t first, int64_t live, float scale) {
    int64_t tiles = (count + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t t = 0; t < tiles; ++t) {
        int64_t begin = count * t / tiles, size = count * (t + 1) / tiles - begin;
        tile_of<T>(static_cast<int>(size))(q + begin, rows + begin, result + begin * g.channels, source, g, first,
                                           live, scale);
    }
}

// Query rows [from, to) of a span and one key/value head; row i is head i % group of position i / group.
template <class T>
void item(const float *queries, const T *keys, const T *values, const int64_t *tables, const Geometry &g,
          const Span &span, int64_t kv_head, int64_t from, int64_t to, float *out) {
    const int64_t group = g.heads / g.kv_heads, count = to - from, c = g.channels;
    const float scale = 1.0f / std::sqrt(static_cast<float>(c));
    std::vector<const float *> q(count);
    std::vector<float *> to_row(count);
    std::vector<Row> rows(count);
    std::vector<float> result(count * c, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
        int64_t position = (from + i) / group, head = kv_head * group + (from + i) % group;
        q[i] = queries + (span.start + position) * g.query_row + head * c;
        to_row[i] = out + ((span.start + position) * g.heads + head) * c;
        rows[i] = {span.context + position, -INFINITY, 0.0f};
    }
    const int64_t length = rows[count - 1].position + 1;
    const bool unpack = count > MAX_ROWS;
    std::vector<float> scratch(unpack ? 2 * KEYS * c : 0);
    for (int64_t first = 0; first < length; first += KEYS) {
        int64_t live = std::min<int64_t>(KEYS, length - first);
        Source<T> source = in_blocks(keys, values, tables + span.table, g, kv_head, first, live);
        if (unpack)
            all_tiles(count, q.data(), rows.data(), result.data(), unpacked(source, g, live, scratch.data()), g, first,
                      live, scale);
        else
            all_tiles(count, q.data(), rows.data(), result.data(), source, g, first, live, scale);
    }
    for (int64_t i = 0; i < count; ++i)
        for (int64_t at = 0; at < c; at += LANES)
            store(to_row[i] + at, load(result.data() + i * c + at) / rows[i].total);
}

template <class T>
void attend(const float *queries, const T *keys, const T *values, const Geometry &g, const Span *spans, int64_t count,
            const int64_t *tables, float *out, int threads) {
    const int64_t group = g.heads / g.kv_heads;
    const int64_t positions = std::max<int64_t>(1, ITEM_ROWS / group);
    std::vector<int64_t> first_item(count + 1, 0);
    for (int64_t s = 0; s < count; ++s)
        first_item[s + 1] = first_item[s] + (spans[s].count + positions - 1) / positions * g.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t at = 0; at < first_item[count]; ++at) {
        int64_t s = std::upper_bound(first_item.begin(), first_item.end(), at) - first_item.begin() - 1;
        int64_t pieces = (spans[s].count + positions - 1) / positions;
        int64_t kv_head = (at - first_item[s]) / pieces, piece = (at - first_item[s]) % pieces;
        int64_t from = piece * positions, to = std::min(from + positions, spans[s].count);
        item<T>(queries, keys, values, tables, g, spans[s], kv_head, from * group, to * group, out);
    }
}

// Rows [n, heads + 2 kv_heads, c]: rotate queries in place by `angles` (cosine, sine for each pair), keys on their way
// into the cache; values follow as they are.
template <class T>
void rotate_and_write(float *rows, const float *angles, T *keys, T *values, const Geometry &g, int64_t count,
                      const int64_t *slots, const int64_t *places, int threads) {
    const int64_t c = g.channels, head_size = c * g.block_rows;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count > 16)
    for (int64_t r = 0; r < count; ++r) {
        float *row = rows + r * (g.heads + 2 * g.kv_heads) * c;
        const float *angle = angles + r * c;
        for (int64_t h = 0; h < g.heads; ++h)
            for (int64_t i = 0; i < c; i += 2) {
                float a = row[h * c + i], b = row[h * c + i + 1];
                row[h * c + i] = a * angle[i] - b * angle[i + 1];
                row[h * c + i + 1] = a * angle[i + 1] + b * angle[i];
            }
        const float *key = row + g.heads * c, *value = key + g.kv_heads * c;
        T *key_to = keys + slots[r] * g.key_slot + places[r];
        T *value_to = values + slots[r] * g.value_slot + places[r] * c;
        for (int64_t h = 0; h < g.kv_heads; ++h) {
            for (int64_t i = 0; i < c; i += 2) {
                float a = key[h * c + i], b = key[h * c + i + 1];
                put(key_to + h * head_size + i * g.block_rows, a * angle[i] - b * angle[i + 1]);
                put(key_to + h * head_size + (i + 1) * g.block_rows, a * angle[i + 1] + b * angle[i]);
            }
            for (int64_t i = 0; i < c; ++i) put(value_to + h * head_size + i, value[h * c + i]);
        }
    }
}

}  // namespace

extern "C" void galley_attend(const float *queries, const void *keys, const void *values, int64_t is_bf16,
                              const Geometry *g, const Span *spans, int64_t count, const int64_t *tables, float *out,
                              int64_t threads) {
    if (is_bf16)
        attend(queries, static_cast<const bf16 *>(keys), static_cast<const bf16 *>(values), *g, spans, count, tables,
               out, static_cast<int>(threads));
    else
        attend(queries, static_cast<const float *>(keys), static_cast<const float *>(values), *g, spans, count, tables,
               out, static_cast<int>(threads));
}

extern "C" void galley_rotate_and_write(float *rows, const float *angles, void *keys, void *values, int64_t is_bf16,
                                        const Geometry *g, int64_t count, const int64_t *slots, const int64_t *places,
                                        int64_t threads) {
    if (is_bf16)
        rotate_and_write(rows, angles, static_cast<bf16 *>(keys), static_cast<bf16 *>(values), *g, count, slots,
                         places, static_cast<int>(threads));
    else
        rotate_and_write(rows, angles, static_cast<float *>(keys), static_cast<float *>(values), *g, count, slots,
                         places, static_cast<int>(threads));
}
