// Manifold hyper-connections of four streams, row by row (formulas: kernels/hyper_connections/__init__.py).
//
// Each row is one chain of operations in a fixed order, whatever rows are beside it: results do not depend on company to
// the bit. The Sinkhorn rounds run on LANES rows at once, one row to a lane.
#include <algorithm>
#include <vector>

#include "../native/simd.h"

using namespace galley;

namespace {

constexpr int N = 4;
constexpr int MIXES = 2 * N + N * N;
constexpr int GROUP = 8;  // outputs of `fn` whose sums are held in registers

float dot(const float *a, const float *b, int64_t count) {
    F total{};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) total += load(a + i) * load(b + i);
    float rest = 0;
    for (; i < count; ++i) rest += a[i] * b[i];
    return sum(total) + rest;
}

// m[0..MIXES) = fn . row
void project(const float *row, const float *fn, int64_t width, float *m) {
    for (int first = 0; first < MIXES; first += GROUP) {
        F total[GROUP] = {};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            F x = load(row + i);
            for (int j = 0; j < GROUP; ++j) total[j] += x * load(fn + (first + j) * width + i);
        }
        for (int j = 0; j < GROUP; ++j) {
            float rest = 0;
            for (int64_t k = i; k < width; ++k) rest += row[k] * fn[(first + j) * width + k];
            m[first + j] = sum(total[j]) + rest;
        }
    }
}

inline F sigmoid(F x) { return 1.0f / (1.0f + exponential(-x)); }

// m: LANES rows, transposed ([MIXES][LANES]); already scaled by the row's statistic.
void finish(const F *m, const float *scale, const float *base, float hc_eps, int64_t rounds, F *pre, F *post, F *matrix) {
    for (int k = 0; k < N; ++k) {
        pre[k] = sigmoid(m[k] * scale[0] + base[k]) + hc_eps;
        post[k] = 2.0f * sigmoid(m[N + k] * scale[1] + base[N + k]);
    }
    for (int j = 0; j < N; ++j) {
        F logits[N], top, total{};
        for (int k = 0; k < N; ++k) logits[k] = m[2 * N + j * N + k] * scale[2] + base[2 * N + j * N + k];
        top = max(max(logits[0], logits[1]), max(logits[2], logits[3]));
        for (int k = 0; k < N; ++k) {
            matrix[j * N + k] = exponential(logits[k] - top);
            total += matrix[j * N + k];
        }
        for (int k = 0; k < N; ++k) matrix[j * N + k] = matrix[j * N + k] / total + hc_eps;
    }
    for (int64_t round = 0; round < rounds; ++round) {
        if (round)
            for (int j = 0; j < N; ++j) {
                F *row = matrix + j * N;
                F inverse = 1.0f / (((row[0] + row[1]) + (row[2] + row[3])) + hc_eps);
                for (int k = 0; k < N; ++k) row[k] *= inverse;
            }
        for (int k = 0; k < N; ++k) {
            F *column = matrix + k;
            F inverse = 1.0f / (((column[0] + column[N]) + (column[2 * N] + column[3 * N])) + hc_eps);
            for (int j = 0; j < N; ++j) column[j * N] *= inverse;
        }
    }
}

void put_rows(const F *values, int count, int64_t rows, float *out) {
    for (int i = 0; i < count; ++i) {
        float lanes[LANES];
        store(lanes, values[i]);
        for (int64_t r = 0; r < rows; ++r) out[r * count + i] = lanes[r];
    }
}

}  // namespace

extern "C" {

// residual [rows, 4, channels], fn [24, 4 channels] -> pre [rows, 4], post [rows, 4], matrix [rows, 4, 4].
void galley_hc_mix(const float *residual, int64_t rows, int64_t channels, const float *fn, const float *scale,
                   const float *base, float rms_eps, float hc_eps, int64_t rounds, float *pre, float *post,
                   float *matrix, int64_t threads) {
    const int64_t width = N * channels, tiles = (rows + LANES - 1) / LANES;
#pragma omp parallel for num_threads(threads) if (threads > 1 && tiles > 1)
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = tile * LANES, used = std::min<int64_t>(LANES, rows - first);
        float m[MIXES][LANES] = {};
        for (int64_t r = 0; r < used; ++r) {
            const float *row = residual + (first + r) * width;
            float products[MIXES];
            project(row, fn, width, products);
            const float statistic = 1.0f / std::sqrt(dot(row, row, width) / width + rms_eps);
            for (int i = 0; i < MIXES; ++i) m[i][r] = products[i] * statistic;
        }
        F lanes[MIXES], p[N], q[N], w[N * N];
        for (int i = 0; i < MIXES; ++i) lanes[i] = load(m[i]);
        finish(lanes, scale, base, hc_eps, rounds, p, q, w);
        put_rows(p, N, used, pre + first * N);
        put_rows(q, N, used, post + first * N);
        put_rows(w, N * N, used, matrix + first * N * N);
    }
}

// out [rows, channels] = sum_k pre[k] R[k], and where there is a norm its RMS norm.
void galley_hc_collapse(const float *residual, const float *pre, int64_t rows, int64_t channels, const float *norm,
                        float eps, float *out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows > 16)
    for (int64_t r = 0; r < rows; ++r) {
        const float *stream = residual + r * N * channels, *p = pre + r * N;
        float *y = out + r * channels;
        for (int64_t i = 0; i < channels; ++i)
            y[i] = (p[0] * stream[i] + p[1] * stream[channels + i]) +
                   (p[2] * stream[2 * channels + i] + p[3] * stream[3 * channels + i]);
        if (!norm) continue;
        const float statistic = 1.0f / std::sqrt(dot(y, y, channels) / channels + eps);
        for (int64_t i = 0; i < channels; ++i) y[i] = y[i] * statistic * norm[i];
    }
}

// out[k] = post[k] y + sum_j matrix[j, k] R[j]; out [rows, 4, channels] is not the residual.
void galley_hc_expand(const float *residual, const float *output, const float *post, const float *matrix, int64_t rows,
                      int64_t channels, float *out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows > 16)
    for (int64_t r = 0; r < rows; ++r) {
        const float *stream = residual + r * N * channels, *y = output + r * channels;
        const float *p = post + r * N, *m = matrix + r * N * N;
        for (int k = 0; k < N; ++k) {
            float *to = out + (r * N + k) * channels;
            for (int64_t i = 0; i < channels; ++i)
                to[i] = p[k] * y[i] + ((m[k] * stream[i] + m[N + k] * stream[channels + i]) +
                                       (m[2 * N + k] * stream[2 * channels + i] + m[3 * N + k] * stream[3 * channels + i]));
        }
    }
}

}  // extern "C"
