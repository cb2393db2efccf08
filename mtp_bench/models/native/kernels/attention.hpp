// RoPE, the cache, and attention of a few rows to it.

#pragma once

#include "norms.hpp"
#include "structures.hpp"

namespace {

constexpr int QUERIES = 32;      // that share a pass over keys and values, at most
constexpr int MOST_WIDTH = 512;  // of a head, at most

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

}  // namespace
