// One decoding step of a LLaMA-like model on a CPU, from token ids to greedy choices, in one call.
//
// A step of few rows reads every weight once and computes little with it, so it is as fast as weights stream in from
// memory, if nothing else is in the way. Weights therefore lie in the order in which they are read (see weights.py),
// one team of threads stays together for the whole step, and all that happens between two products happens in caches.
//
// Every sum is taken in one order, whatever the number of rows and wherever keys lie in the cache: a token's logits are
// the same bits in a tree as alone. (So no -ffast-math, and no sums that depend on a tile's size.)

#include "acceptance.hpp"
#include "drafts.hpp"
#include "layers.hpp"

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
int mtp_most_width() { return MOST_WIDTH; }

void mtp_move(const Moved* moved) { move(*moved); }

void mtp_accept(const Tree* tree, Index batch, const Index* tokens, const Index* choices, const Accepted* to) {
  for (Index b = 0; b < batch; ++b) accept_one(*tree, b, tokens + b * tree->rows, choices + b * tree->rows, *to);
}

#define FOR_DTYPE(E, NAME)                                                                                      \
  void mtp_step_##NAME(const Model* model, const Pass* pass) { run<E>(*model, *pass); }                         \
  void mtp_layer_##NAME(const Model* model, const Pass* pass) { run_alone<E>(*model, *pass); }                  \
  void mtp_norm_##NAME(const void* x, const void* gain, Index rows, Index width, float epsilon, void* to) {     \
    norms((const E*)x, (const E*)gain, rows, width, epsilon, (E*)to, Member{0, 1});                             \
  }                                                                                                             \
  void mtp_product_##NAME(const Matrix* matrix, const void* x, Index rows, int silu, void* to, Index threads) { \
    multiply_rows(*matrix, (const E*)x, rows, silu, (E*)to, threads);                                           \
  }                                                                                                             \
  void mtp_rank_##NAME(const Matrix* matrix, const void* x, Index rows, Index top_k, void* logits, void* ids,   \
                       void* shares, Index threads) {                                                           \
    rank(*matrix, (const E*)x, rows, top_k, (float*)logits, (Index*)ids, (float*)shares, threads);              \
  }

FOR_DTYPE(Bf16, bf16)
FOR_DTYPE(float, fp32)
}
