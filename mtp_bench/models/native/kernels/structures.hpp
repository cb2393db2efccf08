// What a call is told; mirrored in library.py.

#pragma once

#include "numbers.hpp"

extern "C" {
struct Matrix {
  const void* panels;
  const void* bias;  // null = none
  Index inputs, outputs;
};

struct Layer {
  Matrix heads, output, gated, down;
  const void *attention_norm, *mlp_norm;  // the former null = what attention reads is given
  const void *query_norm, *key_norm;      // null = none
  Index mask;                             // which of the pass's masks
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
  Index rows, levels;             // levels = depth + 1
  Index per_sequence;             // rows from one sequence's tree to the next one's, 0 = all have the same
  const Index *parents, *depths;  // [.., rows]
  const uint8_t* real;            // [.., rows]
  const Index* path_rows;         // [.., rows, levels]
};

struct Accepted {
  Index *accepted, *row;  // [batch]
  Index *path, *emitted;  // [batch, levels]
  uint8_t* taken;         // scratch, [batch, rows]
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
  const Index* taps;  // [taps_count] layers whose inputs are features
  Index taps_count;
  void* features;     // [batch, rows, taps_count * hidden]
  const void* given;  // [batch, rows, heads.inputs], what attention reads where no layer norms it
  void *x, *normed, *heads, *attended, *inner;  // scratch, a row each for every row; x is what a layer adds to
  float* scores;                                // scratch, [threads, QUERIES, visible]
  float* best;                                  // scratch, [threads, batch * rows]
  void* hidden;                                 // [batch, rows, hidden]
  Index* best_choice;                           // scratch, [threads, batch * rows]
  Index* choices;                               // [batch, rows]
};
}
