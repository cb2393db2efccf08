// What lies between a step and the next: acceptance, and moving the accepted rows of the cache.

#pragma once

#include "structures.hpp"

namespace {

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

// In every layer; all sources of a sequence are read before the first target is written.
inline void move(const Moved& m) {
  for (Index layer = 0; layer < m.layers; ++layer)
    for (Index kind = 0; kind < 2; ++kind)
      for (Index b = 0; b < m.batch; ++b)
        for (Index head = 0; head < m.heads; ++head) {
          char* at = (char*)m.cache + layer * m.per_layer + kind * m.per_kind + b * m.per_sequence + head * m.per_head;
          const Index *source = m.source + b * m.count, *target = m.target + b * m.count;
          for (Index i = 0; i < m.count; ++i)
            memcpy((char*)m.scratch + i * m.width, at + source[i] * m.per_slot, m.width);
          for (Index i = 0; i < m.count; ++i)
            memcpy(at + target[i] * m.per_slot, (char*)m.scratch + i * m.width, m.width);
        }
}

}  // namespace
