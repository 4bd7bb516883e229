// As many floats as the processor works on at once, memory for them, and what is computed of them.
//
// The compiler makes vectors of plain loops by itself, except where a sum runs along them, which would change its
// order: sums are written with these.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace nightjar {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
typedef float Vector __attribute__((vector_size(64)));
inline Vector mad(Vector a, Vector b, Vector c) { return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kWidth = 8;
typedef float Vector __attribute__((vector_size(32)));
inline Vector mad(Vector a, Vector b, Vector c) { return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__ARM_NEON) && defined(__aarch64__)
constexpr int kWidth = 4;
typedef float Vector __attribute__((vector_size(16)));
inline Vector mad(Vector a, Vector b, Vector c) {
  return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
constexpr int kWidth = 4;
typedef float Vector __attribute__((vector_size(16)));
inline Vector mad(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

constexpr int kLine = 16;  // floats of a line of the cache; rows of numbers begin at one

// Whole lines that hold so many numbers.
inline int whole_lines(int count) { return (count + kLine - 1) / kLine * kLine; }

inline Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

// The same, kept in a register: GCC would read it from memory again wherever it is used, which is what products wait for.
inline Vector load_once(const float* from) {
  Vector vector = load(from);
#if defined(__AVX2__)
  __asm__("" : "+v"(vector));
#elif defined(__aarch64__)
  __asm__("" : "+w"(vector));
#endif
  return vector;
}

inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof(value)); }

inline Vector all(float value) { return value - Vector{}; }  // less zero, since adding it would not keep -0

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

inline float largest(Vector values) {
  float most = values[0];
  for (int lane = 1; lane < kWidth; ++lane) most = values[lane] > most ? values[lane] : most;
  return most;
}

// The largest of so many numbers, a multiple of kWidth.
inline float largest(const float* numbers, int count) {
  Vector most = load(numbers);
  for (int place = kWidth; place < count; place += kWidth) most = larger(load(numbers + place), most);
  return largest(most);
}

// The lanes of two vectors that are named, those of the second counted on.
template <int... lane>
inline Vector lanes(Vector a, Vector b, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, lane...);
#else
  typedef int Places __attribute__((vector_size(sizeof(Vector))));
  return __builtin_shuffle(a, b, Places{lane...});
#endif
}

template <int first, int step, int... lane>
constexpr auto every(std::integer_sequence<int, lane...>) {
  return std::integer_sequence<int, (first + step * lane) & (2 * kWidth - 1)...>();
}

using Lanes = std::make_integer_sequence<int, kWidth>;

inline Vector reversed(Vector a) { return lanes(a, a, every<kWidth - 1, -1>(Lanes())); }

// Every second number of twice as many, from the first.
inline Vector every_second(Vector a, Vector b) { return lanes(a, b, every<0, 2>(Lanes())); }

inline float total(Vector values) {
  values += lanes(values, values, every<kWidth - 1, -1>(Lanes()));  // mirrored: the first half has all sums
  if constexpr (kWidth >= 16) values += lanes(values, values, every<kWidth / 2 - 1, -1>(Lanes()));
  if constexpr (kWidth >= 8) values += lanes(values, values, every<3, -1>(Lanes()));
  return values[0] + values[1];
}

// Sum of products; both rows are whole lines, with zeros at their ends.
inline float dot(const float* a, const float* b, int lines) {
  Vector sum{};
  for (int place = 0; place < lines; place += kWidth) sum = mad(load(a + place), load(b + place), sum);
  return total(sum);
}

// Numbers that begin at a line of the cache, all zero at first.
class Row {
 public:
  explicit Row(size_t count) {
    const size_t bytes = (count * sizeof(float) + 63) / 64 * 64 + 64;
    memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!memory_) std::abort();  // as operator new does in runtime.cc
    std::memset(memory_.get(), 0, bytes);
  }
  operator float*() { return memory_.get(); }
  operator const float*() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
};

}  // namespace nightjar
