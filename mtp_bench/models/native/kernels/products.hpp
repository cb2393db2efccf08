// Products of few rows with packed weights (see weights.py).

#pragma once

#include "structures.hpp"
#include "team.hpp"

namespace {

// What a tile asks for while it works, so that memory is never idle: a little ahead where it reads its panel alone,
// else its share of the next piece, since only the first of several tiles would wait for memory.
constexpr int NEAR = 4096;
// Of a panel, that several tiles read in turn: it and the next one fit into the first cache.
constexpr Index PIECE_BYTES = 16 << 10;
// That share a pass over a panel; their sums fit there too.
constexpr Index BLOCK_ROWS = 64;
struct Ahead {
  const char* at;
  int lines;  // per step
};

// Adds to sums [ROWS, WIDTH] the products of ROWS rows of x, stride apart, with a piece of a panel.
template <class E, int ROWS>
inline __attribute__((always_inline)) void tile(const E* x, Index stride, Index inputs, const E* panel, Ahead ahead,
                                                float (*out)[WIDTH]) {
  Floats sums[ROWS][VECTORS];
  constexpr Index STEP = WIDTH * GROUP<E>;
  const E* row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = x + r * stride;
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = load_wide(out[r] + v * LANES);
  }
  for (Index i = 0; i < inputs; i += GROUP<E>, panel += STEP) {
    for (int line = 0; line < ahead.lines; ++line, ahead.at += LINE) __builtin_prefetch(ahead.at, 0, 3);
    Bits weights[VECTORS];
    for (int v = 0; v < VECTORS; ++v) weights[v] = load_groups(panel + v * LANES * GROUP<E>);
    for (int r = 0; r < ROWS; ++r) {
      uint32_t group;
      memcpy(&group, row[r] + i, sizeof group);
      Bits inputs_of_row = Bits{} + group;
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = dot<E>(sums[r][v], weights[v], inputs_of_row);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) store(sums[r][v], out[r] + v * LANES);
}

template <class E>
void tile(int rows, const E* x, Index stride, Index inputs, const E* panel, Ahead ahead, float (*out)[WIDTH]) {
  switch (rows) {
    case 1:
      return tile<E, 1>(x, stride, inputs, panel, ahead, out);
    case 2:
      return tile<E, 2>(x, stride, inputs, panel, ahead, out);
    case 3:
      return tile<E, 3>(x, stride, inputs, panel, ahead, out);
    case 4:
      return tile<E, 4>(x, stride, inputs, panel, ahead, out);
    case 5:
      return tile<E, TILE_ROWS >= 5 ? 5 : 1>(x, stride, inputs, panel, ahead, out);
    case 6:
      return tile<E, TILE_ROWS >= 6 ? 6 : 1>(x, stride, inputs, panel, ahead, out);
    case 7:
      return tile<E, TILE_ROWS >= 7 ? 7 : 1>(x, stride, inputs, panel, ahead, out);
    default:
      return tile<E, TILE_ROWS>(x, stride, inputs, panel, ahead, out);
  }
}

// The sums of up to BLOCK_ROWS rows with one panel, in tiles of about the same size. Several tiles take the panel in
// pieces that stay in the first cache.
template <class E>
void multiply_panel(const E* x, Index rows, Index inputs, const E* panel, float (*sums)[WIDTH]) {
  memset(sums, 0, rows * sizeof sums[0]);
  constexpr Index LINES = WIDTH * 4 / LINE;  // of a step
  Index tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, lines = (LINES + tiles - 1) / tiles;
  if (tiles == 1) return tile(int(rows), x, inputs, inputs, panel, Ahead{(const char*)panel + NEAR, int(LINES)}, sums);

  Index pieces = (WIDTH * inputs * Index(sizeof(E)) + PIECE_BYTES - 1) / PIECE_BYTES;
  Index width = (inputs / GROUP<E> + pieces - 1) / pieces * GROUP<E>;
  for (Index from = 0; from < inputs; from += width) {
    Index taken = inputs - from < width ? inputs - from : width;
    for (Index t = 0; t < tiles; ++t) {
      Index begin = rows * t / tiles, end = rows * (t + 1) / tiles;
      Ahead ahead{(const char*)(panel + WIDTH * (from + width)) + t * lines * taken / GROUP<E> * LINE, int(lines)};
      tile(int(end - begin), x + begin * inputs + from, inputs, taken, panel + WIDTH * from, ahead, sums + begin);
    }
  }
}

// Products of x with a run of panels: done(row, column, sums, columns) for every row of each of them.
template <class E, class Done>
void product(const Matrix& matrix, const E* x, Index rows, Span panels, Done&& done) {
  for (Index p = panels.begin; p < panels.end; ++p) {
    const E* panel = (const E*)matrix.panels + p * WIDTH * matrix.inputs;
    const E* bias = matrix.bias == nullptr ? nullptr : (const E*)matrix.bias + p * WIDTH;
    Index column = p * WIDTH, columns = matrix.outputs - column < WIDTH ? matrix.outputs - column : WIDTH;
    for (Index row = 0; row < rows; row += BLOCK_ROWS) {
      Index count = rows - row < BLOCK_ROWS ? rows - row : BLOCK_ROWS;
      alignas(64) float sums[BLOCK_ROWS][WIDTH];
      multiply_panel(x + row * matrix.inputs, count, matrix.inputs, panel, sums);
      for (Index r = 0; r < count; ++r) {
        if (bias != nullptr)
          for (int c = 0; c < WIDTH; ++c) sums[r][c] += widen(bias[c]);
        done(row + r, column, sums[r], columns);
      }
    }
  }
}

Index panels_of(Index outputs) { return (outputs + WIDTH - 1) / WIDTH; }

template <class E>
void put(const float* __restrict sums, Index columns, E* __restrict to) {
  for (Index c = 0; c < columns; ++c) narrow(sums[c], to[c]);
}

template <class E>
void add(const float* __restrict sums, Index columns, E* __restrict to) {
  for (Index c = 0; c < columns; ++c) narrow(widen(to[c]) + sums[c], to[c]);
}

template <class E>
void put_silu(const float* __restrict sums, Index columns, E* __restrict to) {
  for (Index c = 0; c < columns; ++c) narrow(sums[c] / (1.0f + exponential(-sums[c])), to[c]);
}

template <class E>
void multiply(const float* __restrict sums, Index columns, E* __restrict to) {
  for (Index c = 0; c < columns; ++c) narrow(widen(to[c]) * sums[c], to[c]);
}

// inner = silu(gate) * up: a panel of the one, then a panel of the other, of the same outputs.
template <class E>
void gated(const Matrix& matrix, const E* x, Index rows, Index width, E* inner, Member me) {
  Span pairs = me.share(panels_of(width));
  for (Index pair = pairs.begin; pair < pairs.end; ++pair) {
    E* to = inner + pair * WIDTH;
    Index own = width - pair * WIDTH < WIDTH ? width - pair * WIDTH : WIDTH;
    product(matrix, x, rows, {2 * pair, 2 * pair + 1},
            [&](Index r, Index, const float* gates, Index) { put_silu(gates, own, to + r * width); });
    product(matrix, x, rows, {2 * pair + 1, 2 * pair + 2},
            [&](Index r, Index, const float* ups, Index) { multiply(ups, own, to + r * width); });
  }
}

}  // namespace
