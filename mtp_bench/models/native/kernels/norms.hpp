// RMS norms.

#pragma once

#include "team.hpp"

namespace {

// RMS norm of one row; to may be from.
template <class E>
void norm(const E* from, const E* gain, Index width, float epsilon, E* to) {
  Floats squares = {};
  for (Index i = 0; i < width; i += LANES) {
    Floats x = load_wide(from + i);
    squares += x * x;
  }
  float scale = 1.0f / std::sqrt(total(squares) / float(width) + epsilon);
  for (Index i = 0; i < width; i += LANES) store(load_wide(from + i) * scale * load_wide(gain + i), to + i);
}

template <class E>
void norms(const E* x, const E* gain, Index rows, Index width, float epsilon, E* to, Member me) {
  Span mine = me.share(rows);
  for (Index r = mine.begin; r < mine.end; ++r) norm(x + r * width, gain, width, epsilon, to + r * width);
}

}  // namespace
