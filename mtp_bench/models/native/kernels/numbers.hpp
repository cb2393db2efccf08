// Numbers of one and of many lanes, and what is done with them in registers.

#pragma once

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

namespace {

struct Bf16 {
  uint16_t bits;
};

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

}  // namespace
