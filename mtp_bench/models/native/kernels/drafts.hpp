// Parts of drafts, each a call of its own.

#pragma once

#include "layers.hpp"

namespace {

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
      for (; place > 0 && logits[i] > shares[place - 1]; --place)
        ids[place] = ids[place - 1], shares[place] = shares[place - 1];
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
