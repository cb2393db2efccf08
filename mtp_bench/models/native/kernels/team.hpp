// How threads share work.

#pragma once

#include "numbers.hpp"

namespace {

struct Span {
  Index begin, end;
};

struct Member {  // of the team of threads
  Index index, team;

  Span share(Index total) const { return {total * index / team, total * (index + 1) / team}; }
};

}  // namespace
