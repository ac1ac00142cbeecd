// RMS norm and rotation of rows in one go: formulas in kernels/row_ops/__init__.py.
#include "../native/simd.h"

using namespace galley;

namespace {

// The last `pairs` pairs of adjacent channels, times complex numbers.
inline void turn(float *row, int64_t channels, const float *turns, int64_t pairs) {
    float *x = row + channels - 2 * pairs;
    for (int64_t i = 0; i < 2 * pairs; i += 2) {
        const float e = x[i], o = x[i + 1], c = turns[i], s = turns[i + 1];
        x[i] = e * c - o * s;
        x[i + 1] = e * s + o * c;
    }
}

}  // namespace

extern "C" {

// x and out [rows, channels] of whole vectors, weight [channels], turns [rows, pairs, 2].
void galley_norm_rotate(const float *x, int64_t rows, int64_t channels, const float *weight, float eps,
                        const float *turns, int64_t pairs, float *out) {
    for (int64_t r = 0; r < rows; ++r, x += channels, out += channels) {
        F squares{};
        for (int64_t i = 0; i < channels; i += LANES) squares += load(x + i) * load(x + i);
        const float scale = 1.0f / std::sqrt(sum(squares) / float(channels) + eps);
        for (int64_t i = 0; i < channels; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
        turn(out, channels, turns + r * 2 * pairs, pairs);
    }
}

// In place: x [rows, heads, channels], turns [rows, pairs, 2].
void galley_rotate(float *x, int64_t rows, int64_t heads, int64_t channels, const float *turns, int64_t pairs) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h, x += channels) turn(x, channels, turns + r * 2 * pairs, pairs);
}

}  // extern "C"
