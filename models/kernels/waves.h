// Cosine and sine in single precision, written so that compilers make vectors of the loops around them.
//
// The angle is rounded as the graph rounds it (turns within one, times 2 pi), since light curves of many years make of
// that rounding more than of any other; what follows is exact to 1e-7.
#pragma once

#include <cmath>

namespace nightjar {

constexpr float kTurn = 6.283185307179586f;
// Of polynomials within an eighth of a turn, fitted at Chebyshev nodes: 1e-8 and 1e-9 off.
constexpr float kSine[] = {-0.166666641831398f, 0.008332746103405952f, -0.00019587387214414775f};
constexpr float kCosine[] = {0.0416666641831398f, -0.0013888300163671374f, 2.4547436623834074e-05f};

// Turns within one, as radians.
inline float angle(float turns) { return (turns - std::floor(turns)) * kTurn; }

// Cosine and sine of 0 to 20 radians: the quarter turn is taken off in three parts, so that nothing is lost.
inline void wave_of(float radians, float& cosine, float& sine) {
  const float quarters = std::floor(radians * 0.6366197723675814f + 0.5f);
  const float x = ((radians - quarters * 1.5703125f) - quarters * 4.837512969970703e-4f) - quarters * 7.54978995489188e-8f;
  const float z = x * x;
  const float s = x + x * z * (kSine[0] + z * (kSine[1] + z * kSine[2]));
  const float c = 1.0f + z * (-0.5f + z * (kCosine[0] + z * (kCosine[1] + z * kCosine[2])));
  const float half = quarters * 0.5f, fourth = quarters * 0.25f;
  const float odd = half - std::floor(half);          // a half where cosine and sine change places
  const float place = fourth - std::floor(fourth);    // 0, a quarter, a half, three quarters
  const float first = odd > 0.25f ? s : c, second = odd > 0.25f ? c : s;
  cosine = place > 0.125f && place < 0.625f ? -first : first;
  sine = place > 0.375f ? -second : second;
}

inline void wave(float turns, float& cosine, float& sine) { wave_of(angle(turns), cosine, sine); }

// Cosine and sine of a frequency, in turns a day, at so many times.
inline void waves(float frequency, const float* __restrict time, int count, float* __restrict cosine,
                  float* __restrict sine) {
  for (int point = 0; point < count; ++point) {
    float c, s;
    wave(frequency * time[point], c, s);
    cosine[point] = c;
    sine[point] = s;
  }
}

// The same of angles times a whole number.
inline void waves_of(const float* __restrict angles, int times, int count, float* __restrict cosine,
                     float* __restrict sine) {
  for (int point = 0; point < count; ++point) {
    float c, s;
    wave_of(angles[point] * static_cast<float>(times), c, s);
    cosine[point] = c;
    sine[point] = s;
  }
}

}  // namespace nightjar
