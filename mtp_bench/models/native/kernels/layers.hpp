// Decoder layers, and the whole step made of them; every function is called by all threads of a team.

#pragma once

#include <omp.h>

#include "attention.hpp"
#include "products.hpp"

namespace {

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

}  // namespace
