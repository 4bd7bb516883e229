// The search for periods by fits: `search` of models/networks/statistics/period_statistics.py.
#pragma once

#include <numeric>

#include "periodogram.h"

namespace nightjar {

constexpr int kCandidates = 16, kAround = 9, kPerDay = 16, kDaily = kCoarse / kPerDay, kWaves = 4;
constexpr float kLong = 1500.0f;  // days
constexpr float kFastest = kFrequencies * kStep;
constexpr float kLeastResidual = 1e-4f, kRidge = 1e-5f, kLeastSum = 1e-9f;

// The highest power in each octave; frequency and power of the two highest peaks.
struct Peaks {
  float octaves[kOctaveCount] = {};
  float frequency[2] = {}, power[2] = {};
};

// Cycles a day from a candidate to a place around it.
inline float away_from(int around) { return (around - kAround / 2) / 8.0f * kStep; }

struct Search {
  explicit Search(int length)
      : part_cos(kPerDay * (length + kLine)), part_sin(kPerDay * (length + kLine)),
        day_cos(kDaily * (length + kLine)), day_sin(kDaily * (length + kLine)),
        around_cos(kAround * (length + kLine)), around_sin(kAround * (length + kLine)),
        columns((kWaves + 2) * (length + kLine)), values(length + kLine), near_cos(length + kLine),
        near_sin(length + kLine) {}

  float frequency[kCandidates];

  void find(const Scores& scores, Periodogram& sums, Peaks& peaks);
  Peaks best(const Scores& scores, Periodogram& sums, int bands);

 private:
  Row part_cos, part_sin, day_cos, day_sin, around_cos, around_sin, columns, values, near_cos, near_sin;
  std::vector<float> first_power;  // of the first of two searches
  float most[2][kIntervals];       // of every interval, in each search
  float residual[kCandidates][2];  // share of the variance that a wave leaves, and one with its overtone
  float trust = 0.0f, alike = 0.0f;

  void set(const Scores& scores);
  void sum(const Scores& scores, Periodogram& sums, float shift, float* highest, Peaks& peaks);
  void take_candidates(const Periodogram& sums, int searches);
  float finer(const Scores& scores, float near);
  void fit(const Scores& scores, int bands, int candidate);
  void choose(Peaks& peaks) const;
};

// What all candidates are fitted with: values, and waves a little beside each.
inline void Search::set(const Scores& scores) {
  const int lines = scores.lines;
  double trusts = 0;
  for (int point = 0; point < lines; ++point) {
    trusts += scores.trust[point];
    values[point] = scores.score[point] / std::max(scores.trust[point], kLeastSum);
  }
  trust = static_cast<float>(trusts);
  alike = trust * trust / std::max(dot(scores.trust, scores.trust, lines), kLeastSum);
  for (int around = 0; around < kAround; ++around)
    waves(away_from(around), scores.time, lines, around_cos + around * lines, around_sin + around * lines);
}

// All sums, of frequencies moved by `shift`; waves are put together from those of whole days and of parts of one.
inline void Search::sum(const Scores& scores, Periodogram& sums, float shift, float* highest, Peaks& peaks) {
  const int lines = scores.lines;
  for (int part = 0; part < kPerDay; ++part)
    waves((2 * part + 1) / (2.0f * kPerDay) + shift, scores.time, lines, part_cos + part * lines,
          part_sin + part * lines);
  for (int point = 0; point < lines; ++point) near_cos[point] = scores.time[point] - std::floor(scores.time[point]);
  for (int day = 0; day < kDaily; ++day)
    waves(static_cast<float>(day), near_cos, lines, day_cos + day * lines, day_sin + day * lines);
  sums.sum(scores, [&](int place, const float* __restrict sized, float* __restrict cosine, float* __restrict sine) {
    const float *c1 = day_cos + place / kPerDay * lines, *s1 = day_sin + place / kPerDay * lines;
    const float *c2 = part_cos + place % kPerDay * lines, *s2 = part_sin + place % kPerDay * lines;
#pragma GCC ivdep
    for (int point = 0; point < lines; ++point) {
      const float c = c2[point] * sized[point], s = s2[point] * sized[point];
      cosine[point] = c1[point] * c - s1[point] * s;
      sine[point] = s1[point] * c + c1[point] * s;
    }
  });
  write_octaves(sums, peaks.octaves);
  for (int interval = 0; interval < kIntervals; ++interval)
    highest[interval] = sums.most[interval] * tilt(interval, kIntervals);
  highest[0] = *std::max_element(sums.power + kSlowest, sums.power + kFine);
}

// The highest place of an interval; of equal ones the one nearest to the coarse frequency.
inline int place_in(const float* power, int interval) {
  const bool below = interval % 2 == 0;
  const int step = below ? -1 : 1, first = interval * kFine + (below ? kFine - 1 : 0);
  int highest = first;
  for (int place = first; place >= interval * kFine && place < (interval + 1) * kFine; place += step)
    if (power[place] > power[highest]) highest = place;
  return std::max(highest, kSlowest);
}

// The frequencies with the highest power, one of an interval, strongest first.
inline void Search::take_candidates(const Periodogram& sums, int searches) {
  float power[kIntervals];
  for (int interval = 0; interval < kIntervals; ++interval)
    power[interval] = searches == 2 ? std::max(most[0][interval], most[1][interval]) : most[0][interval];
  int order[kIntervals];
  std::iota(order, order + kIntervals, 0);
  std::partial_sort(order, order + kCandidates, order + kIntervals, [&](int one, int other) {
    return power[one] > power[other] || (power[one] == power[other] && one < other);
  });
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const int best = order[candidate];
    const bool again = searches == 2 && most[1][best] > most[0][best];
    const float* of_search = searches == 2 && !again ? first_power.data() : sums.power;
    frequency[candidate] = frequency_at(place_in(of_search, best)) + (again ? kStep / 2 : 0.0f);
  }
}

// Move a candidate to where the sums around it are largest.
inline float Search::finer(const Scores& scores, float near) {
  const int lines = scores.lines;
  waves(near, scores.time, lines, near_cos, near_sin);
  for (int point = 0; point < lines; ++point) {
    near_cos[point] *= scores.score[point];
    near_sin[point] *= scores.score[point];
  }
  float best = 0.0f, best_frequency = near;
  for (int around = 0; around < kAround; ++around) {
    const float *cosine = around_cos + around * lines, *sine = around_sin + around * lines;
    const float cc = dot(near_cos, cosine, lines), ss = dot(near_sin, sine, lines);
    const float sc = dot(near_sin, cosine, lines), cs = dot(near_cos, sine, lines);
    const float power = (cc - ss) * (cc - ss) + (sc + cs) * (sc + cs);
    if (around == 0 || power > best) best = power, best_frequency = near + away_from(around);
  }
  return best_frequency;
}

// Weighted least squares by elimination: what is left of the last diagonal element, that of the values, is the sum of
// squares of what is not explained.
inline void Search::fit(const Scores& scores, int bands, int candidate) {
  const int lines = scores.lines;
  float *column[kWaves + 1], *weighted = columns + (kWaves + 1) * lines;
  for (int which = 0; which <= kWaves; ++which) column[which] = columns + which * lines;
  float *__restrict once_cos = column[0], *__restrict once_sin = column[1];
  float *__restrict twice_cos = column[2], *__restrict twice_sin = column[3];
  waves(frequency[candidate], scores.time, lines, once_cos, once_sin);
  for (int point = 0; point < lines; ++point) {
    const float c = once_cos[point], s = once_sin[point];
    twice_cos[point] = c * c - s * s;
    twice_sin[point] = s * c + c * s;
  }
  std::memcpy(column[kWaves], values, lines * sizeof(float));
  for (int band = 0; band < bands; ++band) {
    const int first = scores.begin[band], last = scores.begin[band + 1];
    float mean[kWaves + 1] = {}, weight = 0.0f;
    for (int point = first; point < last; ++point) {
      const float share = scores.trust[point];
      weight += share;
      for (int which = 0; which <= kWaves; ++which) mean[which] += share * column[which][point];
    }
    for (float& each : mean) each /= std::max(weight, kLeastSum);
    for (int which = 0; which <= kWaves; ++which)
      for (int point = first; point < last; ++point) column[which][point] -= mean[which];
  }
  float square[kWaves + 1][kWaves + 1];
  for (int one = 0; one <= kWaves; ++one) {
    for (int point = 0; point < lines; ++point) weighted[point] = column[one][point] * scores.trust[point];
    for (int other = one; other <= kWaves; ++other) square[one][other] = dot(weighted, column[other], lines);
  }
  const float whole = std::max(square[kWaves][kWaves], kLeastSum);
  for (int one = 0; one <= kWaves; ++one) square[one][one] += kRidge * trust;
  for (int wave = 0; wave < kWaves; ++wave) {
    const float pivot = std::max(square[wave][wave], kLeastSum);
    for (int one = wave + 1; one <= kWaves; ++one)
      for (int other = one; other <= kWaves; ++other)
        square[one][other] -= square[wave][one] * (square[wave][other] / pivot);
    if (wave % 2) residual[candidate][wave / 2] = within(square[kWaves][kWaves] / whole, kLeastResidual, 1.0f);
  }
}

// The likeliest candidate, and the likeliest elsewhere.
inline void Search::choose(Peaks& peaks) const {
  const float penalty = std::log(std::max(alike, 1.0f));
  float likely[kCandidates];
  int first = 0;
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    float gain = 0.0f;
    for (int waves = 0; waves < 2; ++waves)
      gain = std::max(gain, -alike * std::log(residual[candidate][waves]) - (2.0f + 2.0f * waves) * penalty);
    likely[candidate] = gain * (1.0f - static_cast<float>(0.02 / kFastest) * frequency[candidate]);
    if (likely[candidate] > likely[first]) first = candidate;
  }
  int other = 0;
  float most = -INFINITY;
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const bool elsewhere = std::fabs(frequency[candidate] - frequency[first]) > kFine * kStep;
    const float here = elsewhere ? likely[candidate] : -1.0f;
    if (here > most) most = here, other = candidate;
  }
  const int places[2] = {first, other};
  for (int which = 0; which < 2; ++which) {
    peaks.frequency[which] = frequency[places[which]];
    peaks.power[which] = (1.0f - residual[places[which]][1]) * alike / 2.0f;
  }
}

// The frequencies with the highest sums, and the highest sum of every octave.
inline void Search::find(const Scores& scores, Periodogram& sums, Peaks& peaks) {
  float first = INFINITY, last = -INFINITY;
  for (int point = 0; point < scores.count; ++point) {
    first = std::min(first, scores.time[point]);
    last = std::max(last, scores.time[point]);
  }
  sums.set(scores, std::sqrt(std::max(dot(scores.score, scores.score, scores.lines), kLeastSum)));
  const int searches = last - first > kLong ? 2 : 1;
  set(scores);
  for (int which = 0; which < searches; ++which) {
    if (which) first_power.assign(sums.power, sums.power + kFrequencies);
    sum(scores, sums, which * (kStep / 2), most[which], peaks);
  }
  take_candidates(sums, searches);
  for (float& each : frequency) each = finer(scores, each);
}

inline Peaks Search::best(const Scores& scores, Periodogram& sums, int bands) {
  Peaks peaks;
  find(scores, sums, peaks);
  for (int candidate = 0; candidate < kCandidates; ++candidate) fit(scores, bands, candidate);
  choose(peaks);
  return peaks;
}

}  // namespace nightjar
