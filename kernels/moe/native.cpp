// Routed experts: rows sorted by expert, each used expert's three products by the kernels for linear layers, and a row's
// sum over its experts in the order given. No row's result depends on its company.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../native/simd.h"

using namespace galley;

// kernels/linear/native.cpp; `call` describes a packed weight.
extern "C" void galley_linear(const void *call, const float *x, int64_t rows, int64_t x_row, int64_t prologue,
                              const float *norm, float eps, float *out, int64_t out_stride, int64_t add, int64_t threads);

namespace {

// gate = silu(min(gate, limit)) * clip(up, -limit, limit); both are padded to whole vectors.
void gate_with(float *gate, const float *up, int64_t count, float limit) {
    const F most = splat(limit), least = splat(-limit);
    for (int64_t i = 0; i < count; i += LANES) {
        F g = load(gate + i), u = load(up + i);
        g = g > most ? most : g;
        u = u > most ? most : (u < least ? least : u);
        store(gate + i, g / (1.0f + exponential(-g)) * u);
    }
}

}  // namespace

extern "C" {

// w1, w3, w2: a packed weight per expert. x and out [rows, channels], chosen and weights [rows, top_k].
void galley_experts(const void *const *w1, const void *const *w3, const void *const *w2, int64_t experts, const float *x,
                    const int64_t *chosen, const float *weights, int64_t rows, int64_t top_k, int64_t channels,
                    int64_t inner, float limit, float *out, int64_t threads) {
    const int64_t pairs = rows * top_k;
    std::vector<int64_t> first(experts + 1), order(pairs);
    for (int64_t p = 0; p < pairs; ++p) ++first[chosen[p] + 1];
    int64_t busiest = 0;
    for (int64_t e = 0; e < experts; ++e) {
        busiest = std::max(busiest, first[e + 1]);
        first[e + 1] += first[e];
    }
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (int64_t p = 0; p < pairs; ++p) order[next[chosen[p]]++] = p;

    const int64_t padded = (busiest * inner + LANES - 1) / LANES * LANES;
    std::vector<float> in(busiest * channels), gate(padded), up(padded), y(busiest * channels), given(pairs * channels);
    for (int64_t e = 0; e < experts; ++e) {
        const int64_t used = first[e + 1] - first[e];
        if (!used) continue;
        const int64_t *mine = order.data() + first[e];
        for (int64_t i = 0; i < used; ++i)
            std::copy_n(x + mine[i] / top_k * channels, channels, in.data() + i * channels);
        galley_linear(w1[e], in.data(), used, channels, 0, nullptr, 0, gate.data(), inner, 0, threads);
        galley_linear(w3[e], in.data(), used, channels, 0, nullptr, 0, up.data(), inner, 0, threads);
        gate_with(gate.data(), up.data(), used * inner, limit);
        galley_linear(w2[e], gate.data(), used, inner, 0, nullptr, 0, y.data(), channels, 0, threads);
        for (int64_t i = 0; i < used; ++i) std::copy_n(y.data() + i * channels, channels, given.data() + mine[i] * channels);
    }
    for (int64_t t = 0; t < rows; ++t) {
        float *to = out + t * channels;
        std::fill(to, to + channels, 0.0f);
        for (int64_t k = 0; k < top_k; ++k) {
            const float w = weights[t * top_k + k], *from = given.data() + (t * top_k + k) * channels;
            for (int64_t i = 0; i < channels; ++i) to[i] += w * from[i];
        }
    }
}

}  // extern "C"
