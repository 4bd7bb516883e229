// Power at twenty thousand frequencies: the sums of models/networks/statistics/period_statistics.py.
//
// A frequency is a coarse one plus or minus a fine one, and sums over points of cosines and sines of the sum of both
// angles are four products of small matrices. They are worked out here for two coarse frequencies and a few fine ones
// at a time, so that the sums stay in registers.
#pragma once

#include "points.h"
#include "waves.h"

namespace nightjar {

constexpr float kStep = 1.0f / 2048;  // cycles a day
constexpr int kFine = 64, kCoarse = 160, kIntervals = 2 * kCoarse, kFrequencies = kIntervals * kFine;
constexpr int kSlowest = 2;
constexpr int kOctaves[] = {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, kFrequencies};
constexpr int kOctaveCount = 13;
constexpr float kLeastSignal = 0.02f;

inline float frequency_at(int place) { return (place + 0.5f) * kStep; }

// The part of the power that counts: of places that fit equally well, the slowest is taken.
inline float tilt(int place, int places) { return 1.0f - static_cast<float>(0.02 / places) * place; }

// Standard scores of the points of bands that vary, each band's one after the other; what lies behind them is 0.
struct Scores {
  explicit Scores(int length)
      : time(length + kLine), score(length + kLine), trust(length + kLine), away(length + kLine) {}

  int count = 0;  // points
  int lines = 0;  // the same, in whole lines
  int begin[kMostBands + 1] = {};
  float searched[kMostBands], all_searched = 0;
  Row time, score, trust, away;

  void take(const Points& points, int bands);
};

inline void Scores::take(const Points& points, int bands) {
  count = 0;
  all_searched = 0;
  for (int band = 0; band < bands; ++band) {
    begin[band] = count;
    const float spread = points.spread[band];
    const bool varies = points.number[band] >= kFewestPoints && spread > kLeastScatter * kLeastScatter;
    searched[band] = varies ? points.number[band] : 0.0f;
    all_searched += searched[band];
    if (!varies) continue;
    const float signal = std::max(spread - points.expected[band], kLeastSignal * spread);
    const float scale = 1.0f / std::sqrt(std::max(spread, kLeastScatter * kLeastScatter));
    for (int point = points.begin[band]; point < points.begin[band + 1]; ++point, ++count) {
      trust[count] = signal / std::max(signal + points.noise[point], 1e-30f);
      score[count] = trust[count] * (points.pull[point] * scale);
      away[count] = points.pull[point];
      time[count] = points.time[point];
    }
  }
  begin[bands] = count;
  lines = whole_lines(count);
  for (int place = count; place < lines; ++place) time[place] = score[place] = trust[place] = away[place] = 0.0f;
}

// Power at every frequency, slowest first, about 1 where there is nothing but noise.
struct Periodogram {
  explicit Periodogram(int length)
      : memory(kFrequencies + 2 * kLine), fine_cos((length + kLine) * kFine), fine_sin((length + kLine) * kFine),
        coarse(4 * (length + kLine)), sized(length + kLine), power(memory + kLine) {}
  float most[kIntervals];  // of as many frequencies as there are fine ones

  // The fine waves of the points, and their scores over the length of all.
  void set(const Scores& scores, float length);

  // All sums; `waves(place, sized, cosine, sine)` writes those of a coarse frequency, times the scores.
  template <class Waves>
  void sum(const Scores& scores, Waves waves);

 private:
  Row memory, fine_cos, fine_sin, coarse, sized;

  void products(int place, int count, int lines);

 public:
  float* const power;  // zeros stand before the first and behind the last
};

inline void Periodogram::set(const Scores& scores, float length) {
  for (int point = 0; point < scores.lines; ++point) sized[point] = scores.score[point] / length;
  for (int point = 0; point < scores.count; ++point) {
    const float time = scores.time[point];
    float *cosine = fine_cos + point * kFine, *sine = fine_sin + point * kFine;
    for (int fine = 0; fine < kFine; ++fine) {
      float c, s;
      wave(time * frequency_at(fine), c, s);
      cosine[fine] = c;
      sine[fine] = s;
    }
  }
}

// Two coarse frequencies, whose waves stand in `coarse` (cosine, sine, and those of the next), with all fine ones.
inline void Periodogram::products(int place, int count, int lines) {
  constexpr int kSide = kWidth == 16 ? 2 : 1;
  const float* wave = coarse;
  for (int fine = 0; fine < kFine; fine += kSide * kWidth) {
    Vector cc[2][kSide] = {}, ss[2][kSide] = {}, sc[2][kSide] = {}, cs[2][kSide] = {};
    for (int point = 0; point < count; ++point) {
      const float *cosine = fine_cos + point * kFine + fine, *sine = fine_sin + point * kFine + fine;
#pragma GCC unroll 2
      for (int side = 0; side < kSide; ++side) {
        const Vector c = load_once(cosine + side * kWidth), s = load_once(sine + side * kWidth);
#pragma GCC unroll 2
        for (int which = 0; which < 2; ++which) {
          const Vector at_c = all(wave[2 * which * lines + point]), at_s = all(wave[(2 * which + 1) * lines + point]);
          cc[which][side] = mad(at_c, c, cc[which][side]);
          ss[which][side] = mad(at_s, s, ss[which][side]);
          sc[which][side] = mad(at_s, c, sc[which][side]);
          cs[which][side] = mad(at_c, s, cs[which][side]);
        }
      }
    }
    for (int which = 0; which < 2; ++which)
      for (int side = 0; side < kSide; ++side) {
        const Vector c = cc[which][side], s = ss[which][side], up = sc[which][side], down = cs[which][side];
        const Vector above = (c - s) * (c - s) + (up + down) * (up + down);
        const Vector below = (c + s) * (c + s) + (up - down) * (up - down);
        float* middle = power + (2 * (place + which) + 1) * kFine;
        store(middle + fine + side * kWidth, above);
        store(middle - fine - (side + 1) * kWidth, reversed(below));
      }
  }
}

template <class Waves>
void Periodogram::sum(const Scores& scores, Waves waves) {
  for (int place = 0; place < kCoarse; place += 2) {
    for (int which = 0; which < 2; ++which) {
      float* cosine = coarse + 2 * which * scores.lines;
      waves(place + which, sized, cosine, cosine + scores.lines);
    }
    products(place, scores.count, scores.lines);
  }
  for (int interval = 0; interval < kIntervals; ++interval) most[interval] = largest(power + interval * kFine, kFine);
}

// Highest power in every octave, 0 at least.
inline void write_octaves(const Periodogram& sums, float* octaves) {
  for (int octave = 0; octave < kOctaveCount; ++octave) {
    const int low = kOctaves[octave], high = kOctaves[octave + 1];
    const float *from = sums.most + low / kFine, *to = sums.most + high / kFine;
    if (high <= kFine) from = sums.power + low, to = sums.power + high;
    for (; from < to; ++from) octaves[octave] = std::max(octaves[octave], *from);
  }
}

}  // namespace nightjar
