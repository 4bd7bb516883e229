// The period of a light curve and the shape of one turn: models/networks/statistics/period_statistics.py.
#pragma once

#include "periodogram.h"
#include "search.h"

namespace nightjar {

constexpr float kFewestScored = 8.0f;
constexpr int kHatCount = 28;
constexpr double kSlowestHat = -3.0, kHatStep = 0.15;  // log10 of cycles a day
constexpr float kMultiples[] = {0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f};
constexpr int kMultipleCount = 6, kOvertoneCount = 3, kOnce = 1;
constexpr float kLargestRatio = 3.0f, kOvertone = 0.5f, kTiny = 1e-6f;
constexpr int kFiner = 8;
constexpr float kTiltNear = 1e-4f;

inline int count_of_periods(int bands) {
  return kOctaveCount + 3 * kHatCount + 4 + 2 * kMultipleCount + 3 * kOvertoneCount + bands;
}

// The best of all sums and of their overtones, and statistics of the best.
struct Periods {
  explicit Periods(int length)
      : scores(length), sums(length), search(length), each(kFrequencies / 2),
        cosine(length + kLine), sine(length + kLine),
        angles(length + kLine) {}

  Scores scores;
  Periodogram sums;
  Search search;

  void write(const Points& points, int bands, int how, Outputs& outputs);

 private:
  Row each, cosine, sine, angles;

  Peaks summed();
  float refined(float frequency);
  void write_period(const Peaks& best, float frequency, int bands, Outputs& outputs);
  void write_hats(const float* place, const float* power, Outputs& outputs) const;
  void with_overtones();
  int best_of(int interval) const;
};

// Power with that of the overtone, as far as it counts, at frequencies whose overtone is among those searched.
inline void Periods::with_overtones() {
  const float* power = sums.power;
  for (int place = 0; place < kFrequencies / 2; place += kWidth) {
    Vector around[2];
    for (int half = 0; half < 2; ++half) {
      const float* first = power + 2 * place + half * kWidth;
      around[half] = larger(larger(load(first - 1), load(first)), larger(load(first + 1), load(first + 2)));
    }
    const Vector here = load(power + place), overtone = every_second(around[0], around[1]);
    const Vector limit = here * kOvertone;
    store(each + place, here + (overtone < limit ? overtone : limit));
  }
  for (int place = 0; place < kSlowest; ++place) each[place] = 0.0f;
}

// The best place of an interval of frequencies, with overtones.
inline int Periods::best_of(int interval) const {
  const float* power = interval < kIntervals / 2 ? each : sums.power;
  int place = interval * kFine;
  float most = power[place] * tilt(place, kFrequencies);
  for (int next = place + 1; next < (interval + 1) * kFine; ++next) {
    const float here = power[next] * tilt(next, kFrequencies);
    if (here > most) most = here, place = next;
  }
  return place;
}

inline Peaks Periods::summed() {
  const int lines = scores.lines;
  sums.set(scores, std::max(std::sqrt(dot(scores.score, scores.score, lines)), 1e-9f));
  sums.sum(scores, [&](int place, const float* sized, float* c, float* s) {
    waves((2 * place + 1) * (kFine * kStep), scores.time, lines, c, s);
    for (int point = 0; point < lines; ++point) c[point] *= sized[point], s[point] *= sized[point];
  });
  with_overtones();
  float best[kIntervals], elsewhere[kIntervals];
  for (int interval = 0; interval < kIntervals; ++interval) {
    const float most = interval < kIntervals / 2 ? largest(each + interval * kFine, kFine) : sums.most[interval];
    best[interval] = most * tilt(interval, kIntervals);
  }
  const auto first = static_cast<int>(std::max_element(best, best + kIntervals) - best);
  for (int interval = 0; interval < kIntervals; ++interval)
    elsewhere[interval] = std::abs(interval - first) > 1 ? best[interval] : 0.0f;
  const auto other = static_cast<int>(std::max_element(elsewhere, elsewhere + kIntervals) - elsewhere);
  Peaks peaks;
  for (const int which : {0, 1}) {
    const int place = best_of(which ? other : first);
    peaks.frequency[which] = frequency_at(place);
    peaks.power[which] = sums.power[place];
  }
  write_octaves(sums, peaks.octaves);
  return peaks;
}

// The frequency near one of the periodogram's with the most power in itself and two overtones.
inline float Periods::refined(float frequency) {
  float best = 0.0f, best_frequency = frequency;
  for (int step = -kFiner; step <= kFiner; ++step) {
    const float near = frequency + step * (kStep / kFiner);
    for (int point = 0; point < scores.lines; ++point) angles[point] = angle(scores.time[point] * near);
    float power = 0.0f;
    for (int times = 1; times <= 3; ++times) {
      waves_of(angles, times, scores.lines, cosine, sine);
      const float c = dot(scores.score, cosine, scores.lines), s = dot(scores.score, sine, scores.lines);
      power += c * c + s * s;
    }
    power *= 1.0f - kTiltNear * (step + kFiner);
    if (step == -kFiner || power > best) best = power, best_frequency = near;
  }
  return best_frequency;
}

// Hats over the logarithms of both frequencies; those of the first also times its power, which come second.
inline void Periods::write_hats(const float* place, const float* power, Outputs& outputs) const {
  for (int row = 0; row < 3; ++row)
    for (int hat = 0; hat < kHatCount; ++hat) {
      const float middle = static_cast<float>(kSlowestHat + kHatStep * hat);
      const float width = static_cast<float>((kSlowestHat + kHatStep) - kSlowestHat);
      const float height = std::max(1.0f - std::fabs(place[row == 2] - middle) / width, 0.0f);
      outputs.add(height * (row == 1 ? power[0] : 1.0f), true);
    }
}

inline void Periods::write_period(const Peaks& best, float frequency, int bands, Outputs& outputs) {
  const int lines = scores.lines;
  float wave_cos[kMultipleCount], wave_sin[kMultipleCount], length[kMultipleCount], amplitude[kMostBands] = {};
  for (int which = 0; which < kMultipleCount; ++which) {
    waves(frequency * kMultiples[which], scores.time, lines, cosine, sine);
    wave_cos[which] = dot(scores.score, cosine, lines);
    wave_sin[which] = dot(scores.score, sine, lines);
    length[which] = std::sqrt(wave_cos[which] * wave_cos[which] + wave_sin[which] * wave_sin[which]);
    for (int band = 0; which == kOnce && band < bands; ++band) {
      float c = 0, s = 0;
      for (int point = scores.begin[band]; point < scores.begin[band + 1]; ++point) {
        c += scores.away[point] * cosine[point];
        s += scores.away[point] * sine[point];
      }
      amplitude[band] = 2.0f * std::sqrt(c * c + s * s) / std::max(scores.searched[band], 1.0f);
    }
  }
  double trusts = 0;
  for (int point = 0; point < scores.count; ++point) trusts += scores.trust[point];
  const float trust = static_cast<float>(trusts);
  const float alike = trust * trust / std::max(dot(scores.trust, scores.trust, lines), kTiny);
  const float square = std::max(dot(scores.score, scores.score, lines), kTiny);
  const float power[2] = {std::log1p(best.power[0]), std::log1p(best.power[1])};
  const float place[2] = {std::log10(best.frequency[0]), std::log10(best.frequency[1])};
  for (const float octave : best.octaves) outputs.add(std::log1p(octave), true);
  write_hats(place, power, outputs);
  for (const float each_place : place) outputs.add(each_place, true);
  for (const float each_power : power) outputs.add(each_power, true);
  for (const float each_length : length) outputs.add(std::log1p(each_length * each_length / square), true);
  for (const float each_length : length)
    outputs.add(2.0f * (each_length * each_length / square) / std::max(alike, 1.0f), true);
  // Turned back by the angle of the frequency as often as the overtone says.
  const float once = std::max(length[kOnce], kTiny);
  const float c1 = wave_cos[kOnce] / once, s1 = wave_sin[kOnce] / once;
  float c = c1, s = s1;
  for (int overtone = 0; overtone < kOvertoneCount; ++overtone) {
    const float next = c * c1 - s * s1;
    s = s * c1 + c * s1;
    c = next;
    const int which = kMultipleCount - kOvertoneCount + overtone;
    const float x = wave_cos[which] / once, y = wave_sin[which] / once;
    outputs.add(within(x * c + y * s, -kLargestRatio, kLargestRatio), true);
    outputs.add(within(y * c - x * s, -kLargestRatio, kLargestRatio), true);
    outputs.add(within(length[which] / once, -kLargestRatio, kLargestRatio), true);
  }
  for (int band = 0; band < bands; ++band) outputs.add(amplitude[band], scores.searched[band] > 0);
}

inline void Periods::write(const Points& points, int bands, int how, Outputs& outputs) {
  scores.take(points, bands);
  if (scores.all_searched < kFewestScored) {
    for (int place = count_of_periods(bands); place > 0; --place) outputs.add(0.0f, false);
    return;
  }
  const bool fitted = how == 2;
  const Peaks best = fitted ? search.best(scores, sums, bands) : summed();
  write_period(best, fitted ? best.frequency[0] : refined(best.frequency[0]), bands, outputs);
}

}  // namespace nightjar
