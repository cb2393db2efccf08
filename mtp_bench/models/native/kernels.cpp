// One decoding step of a LLaMA-like model on a CPU, from token ids to greedy choices, in one call.
//
// A step of few rows reads every weight once and computes little with it, so it is as fast as weights stream in from
// memory, if nothing else is in the way. Weights therefore lie in the order in which they are read (see weights.py), one
// team of threads stays together for the whole step, and all that happens between two products happens in caches.
//
// Every sum is taken in one order, whatever the number of rows and wherever keys lie in the cache: a token's logits are
// the same bits in a tree as alone. (So no -ffast-math, and no sums that depend on a tile's size.)

#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

using Index = int64_t;

// What one register holds, and how much of a product's result is kept in registers at a time: TILE_ROWS x VECTORS
// registers of sums, VECTORS of weights, one of inputs.
#if defined(__AVX512F__)
constexpr int LANES = 16, TILE_ROWS = 8;
#elif defined(__AVX__)
constexpr int LANES = 8, TILE_ROWS = 4;
#elif defined(__aarch64__)
constexpr int LANES = 4, TILE_ROWS = 8;
#else
constexpr int LANES = 4, TILE_ROWS = 4;
#endif
constexpr int VECTORS = 3;
constexpr int WIDTH = VECTORS * LANES;
constexpr int LINE = 64;  // bytes of a cache line

struct Bf16 {
  uint16_t bits;
};

// Mirrored in library.py.
extern "C" {
struct Matrix {
  const void* panels;
  const void* bias;  // null = none
  Index inputs, outputs;
};

struct Layer {
  Matrix heads, output, gated, down;
  const void *attention_norm, *mlp_norm;  // the former null = what attention reads is given
  const void *query_norm, *key_norm;  // null = none
  Index mask;                         // which of the pass's masks
};

struct Model {
  Index layers, hidden, heads, kv_heads, head_dim, inner;
  float epsilon, head_epsilon, scaling;
  const void* embedding;
  const Layer* layer;
  const void* norm;
  Matrix lm_head;
};

struct Mask {
  const uint8_t* data;  // 1 = visible; null = every row sees every slot
  Index per_sequence, per_row;
};

struct Tree {
  Index rows, levels;  // levels = depth + 1
  Index per_sequence;  // rows from one sequence's tree to the next one's, 0 = all have the same
  const Index *parents, *depths;  // [.., rows]
  const uint8_t* real;            // [.., rows]
  const Index* path_rows;         // [.., rows, levels]
};

struct Accepted {
  Index *accepted, *row;   // [batch]
  Index *path, *emitted;   // [batch, levels]
  uint8_t* taken;          // scratch, [batch, rows]
};

struct Moved {
  void* cache;
  Index per_layer, per_kind, per_sequence, per_head, per_slot;  // bytes
  Index layers, batch, heads, width;                            // width = bytes of a vector
  Index count;                                                  // slots of each sequence
  const Index *source, *target;                                 // [batch, count]
  void* scratch;                                                // [count, width]
};

struct Pass {
  Index batch, rows, visible, threads;
  const Index *tokens, *slots;  // [batch, rows]
  const void *cosine, *sine;    // [positions, head_dim]
  const Index* turns;           // [batch, rows], which of these each row takes
  void* cache;
  Index per_layer, per_kind, per_sequence, per_head, per_slot;  // elements of the cache; kind = keys, values
  Mask masks[2];
  const Index* taps;     // [taps_count] layers whose inputs are features
  Index taps_count;
  void* features;        // [batch, rows, taps_count * hidden]
  const void* given;  // [batch, rows, heads.inputs], what attention reads where no layer norms it
  void *x, *normed, *heads, *attended, *inner;  // scratch, a row each for every row; x is what a layer adds to
  float* scores;         // scratch, [threads, QUERIES, visible]
  float* best;           // scratch, [threads, batch * rows]
  void* hidden;          // [batch, rows, hidden]
  Index* best_choice;    // scratch, [threads, batch * rows]
  Index* choices;        // [batch, rows]
};
}

namespace {

constexpr int QUERIES = 32;      // that share a pass over keys and values, at most
constexpr int MOST_WIDTH = 512;  // of a head, at most

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

inline float widen(float x) { return x; }
inline float widen(Bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, Bf16& to) {  // to nearest, ties to even
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = uint16_t(x == x ? rounded : 0x7fc0);
}

inline void store(Floats x, float* to) { memcpy(to, &x, sizeof x); }
inline void store(Floats x, Bf16* to) {  // as narrow
  Bits bits = (Bits)x;
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  bits = x == x ? bits : Bits{} + 0x7fc0;
  Halves halves = __builtin_convertvector(bits, Halves);
  memcpy(to, &halves, sizeof halves);
}

template <class E>
inline float rounded(float x) {
  E narrowed;
  narrow(x, narrowed);
  return widen(narrowed);
}

// Elements that lie in one lane: two of bf16, one of fp32.
template <class E>
constexpr int GROUP = 4 / sizeof(E);

template <class E>
inline Bits load_groups(const E* from) {
  Bits bits;
  memcpy(&bits, from, sizeof bits);
  return bits;
}

inline Floats load_wide(const float* from) {
  Floats wide;
  memcpy(&wide, from, sizeof wide);
  return wide;
}
inline Floats load_wide(const Bf16* from) {
  Halves halves;
  memcpy(&halves, from, sizeof halves);
  return (Floats)(__builtin_convertvector(halves, Bits) << 16);
}

// sum + a * b in every lane, over the elements of its group.
template <class E>
inline Floats dot(Floats sum, Bits a, Bits b);

template <>
inline Floats dot<float>(Floats sum, Bits a, Bits b) {
  return sum + (Floats)a * (Floats)b;
}

template <>
inline Floats dot<Bf16>(Floats sum, Bits a, Bits b) {
#if defined(__AVX512BF16__)
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum = sum + (Floats)(a << 16) * (Floats)(b << 16);
  return sum + (Floats)(a & 0xffff0000u) * (Floats)(b & 0xffff0000u);
#endif
}

inline float total(Floats lanes) {
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// e^x within two units in the last place; 0 where it would be denormal. Written for loops of it to become vector code.
inline float exponential(float x) {
  float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  float power = __builtin_rintf(clamped * 1.44269504f);
  float rest = clamped - power * 0.693359375f + power * 2.12194440e-4f;
  float sum = 1.9875691500e-4f;
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  int32_t bits = (int32_t(power) + 127) << 23;
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  return x < -87.0f ? 0.0f : sum * scale;
}

struct Span {
  Index begin, end;
};

struct Member {  // of the team of threads
  Index index, team;

  Span share(Index total) const { return {total * index / team, total * (index + 1) / team}; }
};

// ---- Products

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
    case 1: return tile<E, 1>(x, stride, inputs, panel, ahead, out);
    case 2: return tile<E, 2>(x, stride, inputs, panel, ahead, out);
    case 3: return tile<E, 3>(x, stride, inputs, panel, ahead, out);
    case 4: return tile<E, 4>(x, stride, inputs, panel, ahead, out);
    case 5: return tile<E, TILE_ROWS >= 5 ? 5 : 1>(x, stride, inputs, panel, ahead, out);
    case 6: return tile<E, TILE_ROWS >= 6 ? 6 : 1>(x, stride, inputs, panel, ahead, out);
    case 7: return tile<E, TILE_ROWS >= 7 ? 7 : 1>(x, stride, inputs, panel, ahead, out);
    default: return tile<E, TILE_ROWS>(x, stride, inputs, panel, ahead, out);
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

// ---- Norms

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

// ---- Attention

template <class E>
E* cached(const Pass& pass, Index layer, Index kind, Index sequence, Index head, Index slot) {
  return (E*)pass.cache + layer * pass.per_layer + kind * pass.per_kind + sequence * pass.per_sequence +
         head * pass.per_head + slot * pass.per_slot;
}

template <class E>
void turn(const E* from, const E* cosine, const E* sine, Index width, E* to) {
  Index half = width / 2;
  for (Index i = 0; i < half; i += LANES) {
    Floats left = load_wide(from + i), right = load_wide(from + half + i);
    store(left * load_wide(cosine + i) - right * load_wide(sine + i), to + i);
    store(right * load_wide(cosine + half + i) + left * load_wide(sine + half + i), to + half + i);
  }
}

// Head norms and RoPE in place; keys and values go to their slots of the cache.
template <class E>
void place(const Model& model, const Layer& layer, Index index, const Pass& pass, Member me) {
  Index width = model.head_dim, all = model.heads + 2 * model.kv_heads;
  Span mine = me.share(pass.batch * pass.rows * all);
  for (Index item = mine.begin; item < mine.end; ++item) {
    Index row = item / all, head = item % all, sequence = row / pass.rows;
    E* vector = (E*)pass.heads + item * width;
    bool query = head < model.heads;
    if (head >= model.heads + model.kv_heads) {
      memcpy(cached<E>(pass, index, 1, sequence, head - model.heads - model.kv_heads, pass.slots[row]), vector,
             width * sizeof(E));
      continue;
    }
    const E* gain = (const E*)(query ? layer.query_norm : layer.key_norm);
    if (gain != nullptr) norm(vector, gain, width, model.head_epsilon, vector);
    E* to = query ? vector : cached<E>(pass, index, 0, sequence, head - model.heads, pass.slots[row]);
    Index from = pass.turns[row] * width;
    turn(vector, (const E*)pass.cosine + from, (const E*)pass.sine + from, width, to);
  }
}

// Queries of one sequence and one key/value head, and where their results go.
template <class E>
struct Queries {
  int count;
  const E* query[QUERIES];
  const uint8_t* mask[QUERIES];  // null = none
  E* to[QUERIES];
  const E *keys, *values;
  Index slots, per_slot, width;
  float scaling;
  float* scores;  // [QUERIES, per_query]
  Index per_query;
};

#if defined(__clang__)
template <int... I>
struct Lanes {};
template <int N, int... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <int... I>
struct Count<0, I...> {
  static Bits low(Bits a, Bits b) { return __builtin_shufflevector(a, b, (I / 2 + I % 2 * LANES)...); }
  static Bits high(Bits a, Bits b) { return __builtin_shufflevector(a, b, (LANES / 2 + I / 2 + I % 2 * LANES)...); }
};
inline Bits zip_low(Bits a, Bits b) { return Count<LANES>::low(a, b); }
inline Bits zip_high(Bits a, Bits b) { return Count<LANES>::high(a, b); }
#else
inline Bits zip(Bits a, Bits b, uint32_t from) {
  Bits order;
  for (uint32_t i = 0; i < LANES; ++i) order[i] = from + i / 2 + i % 2 * LANES;
  return __builtin_shuffle(a, b, order);
}
inline Bits zip_low(Bits a, Bits b) { return zip(a, b, 0); }
inline Bits zip_high(Bits a, Bits b) { return zip(a, b, LANES / 2); }
#endif

// LANES x LANES, rows to columns: zipping halves as often as an index has bits turns the index round.
inline void transpose(Bits (&rows)[LANES]) {
  for (int stage = 1; stage < LANES; stage *= 2) {
    Bits zipped[LANES];
    for (int i = 0; i < LANES / 2; ++i) {
      zipped[2 * i] = zip_low(rows[i], rows[i + LANES / 2]);
      zipped[2 * i + 1] = zip_high(rows[i], rows[i + LANES / 2]);
    }
    memcpy(rows, zipped, sizeof rows);
  }
}

// Scores of COUNT queries, from the first-th on, for LANES keys that lie side by side: groups [width / GROUP].
template <class E, int COUNT>
void score(const Queries<E>& q, const Bits* groups, int first, Index slot) {
  Floats sums[2][COUNT] = {};  // two, not to wait for the one before
  for (Index i = 0; i < q.width / GROUP<E>; i += 2)
    for (int n = 0; n < COUNT; ++n)
      for (int half = 0; half < 2; ++half) {
        uint32_t group;
        memcpy(&group, q.query[first + n] + (i + half) * GROUP<E>, sizeof group);
        sums[half][n] = dot<E>(sums[half][n], groups[i + half], Bits{} + group);
      }
  for (int n = 0; n < COUNT; ++n) store(sums[0][n] + sums[1][n], q.scores + (first + n) * q.per_query + slot);
}

template <class E>
void score(const Queries<E>& q) {
  Bits groups[MOST_WIDTH];
  for (Index slot = 0; slot < q.slots; slot += LANES) {
    for (Index i = 0; i < q.width / GROUP<E>; i += LANES) {
      Bits block[LANES];
      for (Index k = 0; k < LANES; ++k) {
        Index at = slot + k < q.slots ? slot + k : q.slots - 1;  // scores behind the last are not used
        block[k] = load_groups(q.keys + at * q.per_slot + i * GROUP<E>);
      }
      transpose(block);
      memcpy(groups + i, block, sizeof block);
    }
    int n = 0;
    for (; n + 8 <= q.count; n += 8) score<E, 8>(q, groups, n, slot);
    for (; n + 3 <= q.count; n += 3) score<E, 3>(q, groups, n, slot);
    for (; n + 2 <= q.count; n += 2) score<E, 2>(q, groups, n, slot);
    for (; n < q.count; ++n) score<E, 1>(q, groups, n, slot);
  }
}

// Scores of one query -> weights that do not sum to one yet.
inline void weigh(const uint8_t* mask, Index slots, float scaling, float* scores) {
  float most = -INFINITY;
  if (mask == nullptr)
    for (Index s = 0; s < slots; ++s) scores[s] *= scaling;
  else
    for (Index s = 0; s < slots; ++s) scores[s] = mask[s] ? scores[s] * scaling : -INFINITY;
  Floats mosts = Floats{} - INFINITY;
  Index s = 0;
  for (; s + LANES <= slots; s += LANES) {
    Floats some = load_wide(scores + s);
    mosts = some > mosts ? some : mosts;
  }
  for (int i = 0; i < LANES; ++i) most = mosts[i] > most ? mosts[i] : most;
  for (; s < slots; ++s) most = scores[s] > most ? scores[s] : most;
  for (s = 0; s < slots; ++s) scores[s] = exponential(scores[s] - most);
}

// Weighted sums over the values, PARTS registers of each vector at a time; slot by slot, so that unseen ones add 0.
template <class E, int COUNT, int PARTS>
void gather(const Queries<E>& q, int first, Index from) {
  Floats sums[COUNT][PARTS] = {};
  float weights[COUNT] = {};
  const float* scores[COUNT];
  for (int n = 0; n < COUNT; ++n) scores[n] = q.scores + (first + n) * q.per_query;
  for (Index s = 0; s < q.slots; ++s) {
    const E* value = q.values + s * q.per_slot + from;
    Floats part[PARTS];
    for (int p = 0; p < PARTS; ++p) part[p] = load_wide(value + p * LANES);
    for (int n = 0; n < COUNT; ++n) {
      float weight = scores[n][s];
      weights[n] += weight;
      for (int p = 0; p < PARTS; ++p) sums[n][p] += weight * part[p];
    }
  }
  for (int n = 0; n < COUNT; ++n)
    for (int p = 0; p < PARTS; ++p) store(sums[n][p] / weights[n], q.to[first + n] + from + p * LANES);
}

template <class E, int COUNT>
void gather(const Queries<E>& q, int first) {
  Index from = 0;
  for (; from + 4 * LANES <= q.width; from += 4 * LANES) gather<E, COUNT, 4>(q, first, from);
  for (; from < q.width; from += LANES) gather<E, COUNT, 1>(q, first, from);
}

template <class E>
void attend(const Queries<E>& q) {
  score(q);
  for (int n = 0; n < q.count; ++n) weigh(q.mask[n], q.slots, q.scaling, q.scores + n * q.per_query);
  int n = 0;
  for (; n + 4 <= q.count; n += 4) gather<E, 4>(q, n);
  for (; n + 3 <= q.count; n += 3) gather<E, 3>(q, n);
  for (; n + 2 <= q.count; n += 2) gather<E, 2>(q, n);
  for (; n < q.count; ++n) gather<E, 1>(q, n);
}

// Queries in the order sequence, key/value head, query head, row; a thread takes a run of them.
template <class E>
void attention(const Model& model, const Layer& layer, Index index, const Pass& pass, Member me) {
  Index width = model.head_dim, groups = model.heads / model.kv_heads, all = model.heads + 2 * model.kv_heads;
  Index shared = groups * pass.rows;  // queries of one key/value head
  const Mask& mask = pass.masks[layer.mask];
  Span mine = me.share(pass.batch * model.kv_heads * shared);
  for (Index item = mine.begin; item < mine.end;) {
    Index sequence = item / (model.kv_heads * shared), kv_head = item / shared % model.kv_heads;
    Index end = (item / shared + 1) * shared;
    end = end < mine.end ? end : mine.end;
    Queries<E> q;
    q.count = int(end - item < QUERIES ? end - item : QUERIES);
    q.keys = cached<E>(pass, index, 0, sequence, kv_head, 0);
    q.values = cached<E>(pass, index, 1, sequence, kv_head, 0);
    q.slots = pass.visible, q.per_slot = pass.per_slot, q.width = width, q.scaling = model.scaling;
    q.per_query = (pass.visible + LANES - 1) / LANES * LANES;
    q.scores = pass.scores + me.index * QUERIES * q.per_query;
    for (int n = 0; n < q.count; ++n) {
      Index head = kv_head * groups + (item + n) % shared / pass.rows, row = (item + n) % pass.rows;
      Index place = sequence * pass.rows + row;
      q.query[n] = (const E*)pass.heads + (place * all + head) * width;
      q.to[n] = (E*)pass.attended + (place * model.heads + head) * width;
      q.mask[n] = mask.data;
      if (mask.data != nullptr) q.mask[n] += sequence * mask.per_sequence + row * mask.per_row;
    }
    attend(q);
    item += q.count;
  }
}

// ---- The step

template <class E>
void run_layer(const Model& model, Index index, const Pass& pass, Member me) {
  const Layer& layer = model.layer[index];
  Index rows = pass.batch * pass.rows, hidden = model.hidden;
  E *x = (E*)pass.x, *normed = (E*)pass.normed, *heads = (E*)pass.heads, *inner = (E*)pass.inner;
  auto onto_x = [&](Index row, Index column, const float* sums, Index columns) {
    add(sums, columns, x + row * hidden + column);
  };
  const E* read = layer.attention_norm == nullptr ? (const E*)pass.given : normed;
  if (read == normed) norms(x, (const E*)layer.attention_norm, rows, hidden, model.epsilon, normed, me);
#pragma omp barrier
  Index width = layer.heads.outputs;
  product(layer.heads, read, rows, me.share(panels_of(width)),
          [&](Index row, Index column, const float* sums, Index columns) {
            put(sums, columns, heads + row * width + column);
          });
#pragma omp barrier
  place<E>(model, layer, index, pass, me);
#pragma omp barrier
  attention<E>(model, layer, index, pass, me);
#pragma omp barrier
  product(layer.output, (const E*)pass.attended, rows, me.share(panels_of(hidden)), onto_x);
#pragma omp barrier
  norms(x, (const E*)layer.mlp_norm, rows, hidden, model.epsilon, normed, me);
#pragma omp barrier
  gated(layer.gated, normed, rows, model.inner, inner, me);
#pragma omp barrier
  product(layer.down, inner, rows, me.share(panels_of(hidden)), onto_x);
#pragma omp barrier
}

template <class E>
void choose(const Model& model, const Pass& pass, Member me) {
  Index rows = pass.batch * pass.rows;
  float* best = pass.best + me.index * rows;
  Index* choice = pass.best_choice + me.index * rows;
  for (Index r = 0; r < rows; ++r) best[r] = -INFINITY, choice[r] = 0;
  // Rounded, as the stock model's logits are, and the first of equal ones: the same choice.
  product(model.lm_head, (const E*)pass.hidden, rows, me.share(panels_of(model.lm_head.outputs)),
          [&](Index row, Index column, const float* sums, Index columns) {
            for (Index c = 0; c < columns; ++c) {
              float logit = rounded<E>(sums[c]);
              if (logit > best[row]) best[row] = logit, choice[row] = column + c;
            }
          });
#pragma omp barrier
  Span mine = me.share(rows);
  for (Index r = mine.begin; r < mine.end; ++r) {
    Index first = 0;
    for (Index t = 1; t < me.team; ++t)
      if (pass.best[t * rows + r] > pass.best[first * rows + r]) first = t;
    pass.choices[r] = pass.best_choice[first * rows + r];
  }
}

template <class E>
void copy_rows(const E* from, Index rows, Index width, E* to, Index stride, Member me) {
  Span mine = me.share(rows);
  for (Index r = mine.begin; r < mine.end; ++r) memcpy(to + r * stride, from + r * width, width * sizeof(E));
}

template <class E>
void run_member(const Model& model, const Pass& pass, Member me) {
  Index rows = pass.batch * pass.rows, hidden = model.hidden;
  Span mine = me.share(rows);
  for (Index r = mine.begin; r < mine.end; ++r)
    memcpy((E*)pass.x + r * hidden, (const E*)model.embedding + pass.tokens[r] * hidden, hidden * sizeof(E));
  for (Index layer = 0; layer < model.layers; ++layer) {
    // Rows are shared out as above and as norms does, so no barrier lies between.
    for (Index t = 0; t < pass.taps_count; ++t)
      if (pass.taps[t] == layer)
        copy_rows((const E*)pass.x, rows, hidden, (E*)pass.features + t * hidden, pass.taps_count * hidden, me);
    run_layer<E>(model, layer, pass, me);
  }
  norms((const E*)pass.x, (const E*)model.norm, rows, hidden, model.epsilon, (E*)pass.hidden, me);
#pragma omp barrier
  choose<E>(model, pass, me);
}

template <class E>
void run(const Model& model, const Pass& pass) {
#pragma omp parallel num_threads(int(pass.threads))
  run_member<E>(model, pass, Member{omp_get_thread_num(), omp_get_num_threads()});
}

// ---- Acceptance

// The longest path of one tree whose every token is the choice at its parent; parents stand before their children.
void accept_one(const Tree& tree, Index sequence, const Index* tokens, const Index* choices, const Accepted& to) {
  Index rows = tree.rows, levels = tree.levels, of_tree = sequence * tree.per_sequence;
  const Index *parents = tree.parents + of_tree, *depths = tree.depths + of_tree;
  const uint8_t* real = tree.real + of_tree;
  uint8_t* taken = to.taken + sequence * rows;
  Index best = 0;
  for (Index r = 0; r < rows; ++r) {
    taken[r] = real[r] && (r == 0 || (taken[parents[r]] && tokens[r] == choices[parents[r]]));
    if (taken[r] && depths[r] > depths[best]) best = r;
  }
  const Index* path = tree.path_rows + of_tree * levels + best * levels;
  to.accepted[sequence] = depths[best];
  to.row[sequence] = best;
  for (Index level = 0; level < levels; ++level) {
    to.path[sequence * levels + level] = path[level];
    to.emitted[sequence * levels + level] = choices[path[level]];
  }
}

// ---- Parts of drafts

template <class E>
void run_alone(const Model& model, const Pass& pass) {
#pragma omp parallel num_threads(int(pass.threads))
  run_layer<E>(model, 0, pass, Member{omp_get_thread_num(), omp_get_num_threads()});
}

template <class E>
void multiply_rows(const Matrix& matrix, const E* x, Index rows, bool silu, E* to, Index threads) {
#pragma omp parallel num_threads(int(threads))
  product(matrix, x, rows, Member{omp_get_thread_num(), omp_get_num_threads()}.share(panels_of(matrix.outputs)),
          [&](Index row, Index column, const float* sums, Index columns) {
            E* at = to + row * matrix.outputs + column;
            silu ? put_silu(sums, columns, at) : put(sums, columns, at);
          });
}

// The first of the top_k largest logits, the lower id first among equal ones, and their log-probabilities.
inline void rank_row(const float* logits, Index width, Index top_k, Index* ids, float* shares) {
  Index found = 0;
  float worst = -INFINITY;
  for (Index block = 0; block < width; block += LANES) {
    Index end = block + LANES < width ? block + LANES : width;
    if (found == top_k && end - block == LANES) {
      bool any = false;
      for (int i = 0; i < LANES; ++i) any |= logits[block + i] > worst;
      if (!any) continue;
    }
    for (Index i = block; i < end; ++i) {
      if (found == top_k && !(logits[i] > worst)) continue;
      Index place = found < top_k ? found++ : top_k - 1;
      for (; place > 0 && logits[i] > shares[place - 1]; --place) ids[place] = ids[place - 1], shares[place] = shares[place - 1];
      ids[place] = i, shares[place] = logits[i];
      worst = shares[found - 1];
    }
  }
  float most = shares[0];
  Floats sums = {};
  float rest = 0.0f;
  Index i = 0;
  for (; i + LANES <= width; i += LANES) {
    float powers[LANES];
    for (int lane = 0; lane < LANES; ++lane) powers[lane] = exponential(logits[i + lane] - most);
    sums += load_wide(powers);
  }
  for (; i < width; ++i) rest += exponential(logits[i] - most);
  float log_sum = most + std::log(total(sums) + rest);
  for (Index k = 0; k < top_k; ++k) shares[k] -= log_sum;
}

template <class E>
void rank(const Matrix& matrix, const E* x, Index rows, Index top_k, float* logits, Index* ids, float* shares,
          Index threads) {
#pragma omp parallel num_threads(int(threads))
  {
    Member me{omp_get_thread_num(), omp_get_num_threads()};
    product(matrix, x, rows, me.share(panels_of(matrix.outputs)),
            [&](Index row, Index column, const float* sums, Index columns) {
              float* at = logits + row * matrix.outputs + column;
              for (Index c = 0; c < columns; ++c) at[c] = rounded<E>(sums[c]);
            });
#pragma omp barrier
    Span mine = me.share(rows);
    for (Index r = mine.begin; r < mine.end; ++r)
      rank_row(logits + r * matrix.outputs, matrix.outputs, top_k, ids + r * top_k, shares + r * top_k);
  }
}

}  // namespace

extern "C" {
int mtp_lanes() { return LANES; }
int mtp_vectors() { return VECTORS; }
int mtp_bf16_products() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;  // widened to fp32
#endif
}
int mtp_queries() { return QUERIES; }

void mtp_accept(const Tree* tree, Index batch, const Index* tokens, const Index* choices, const Accepted* to) {
  for (Index b = 0; b < batch; ++b) accept_one(*tree, b, tokens + b * tree->rows, choices + b * tree->rows, *to);
}

// In every layer; all sources of a sequence are read before the first target is written.
void mtp_move(const Moved* m) {
  for (Index layer = 0; layer < m->layers; ++layer)
    for (Index kind = 0; kind < 2; ++kind)
      for (Index b = 0; b < m->batch; ++b)
        for (Index head = 0; head < m->heads; ++head) {
          char* at = (char*)m->cache + layer * m->per_layer + kind * m->per_kind + b * m->per_sequence + head * m->per_head;
          const Index *source = m->source + b * m->count, *target = m->target + b * m->count;
          for (Index i = 0; i < m->count; ++i)
            memcpy((char*)m->scratch + i * m->width, at + source[i] * m->per_slot, m->width);
          for (Index i = 0; i < m->count; ++i)
            memcpy(at + target[i] * m->per_slot, (char*)m->scratch + i * m->width, m->width);
        }
}

int mtp_most_width() { return MOST_WIDTH; }

#define FOR_DTYPE(E, NAME)                                                                                     \
  void mtp_step_##NAME(const Model* model, const Pass* pass) { run<E>(*model, *pass); }                        \
  void mtp_layer_##NAME(const Model* model, const Pass* pass) { run_alone<E>(*model, *pass); }                 \
  void mtp_norm_##NAME(const void* x, const void* gain, Index rows, Index width, float epsilon, void* to) {    \
    norms((const E*)x, (const E*)gain, rows, width, epsilon, (E*)to, Member{0, 1});                            \
  }                                                                                                            \
  void mtp_product_##NAME(const Matrix* matrix, const void* x, Index rows, int silu, void* to, Index threads) { \
    multiply_rows(*matrix, (const E*)x, rows, silu, (E*)to, threads);                                          \
  }                                                                                                            \
  void mtp_rank_##NAME(const Matrix* matrix, const void* x, Index rows, Index top_k, void* logits, void* ids,  \
                       void* shares, Index threads) {                                                          \
    rank(*matrix, (const E*)x, rows, top_k, (float*)logits, (Index*)ids, (float*)shares, threads);             \
  }

FOR_DTYPE(Bf16, bf16)
FOR_DTYPE(float, fp32)
}
