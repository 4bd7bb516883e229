// The folded light curve in flux: models/networks/statistics/fold_statistics.py.
#pragma once

#include "periods.h"

namespace nightjar {

constexpr int kFoldCount = 19, kHarmonics = 4, kMostHarmonics = 2 * kHarmonics, kTried = 5;
constexpr float kClipped = 5.0f, kDoubtful = 0.3f, kLeastSpread = 1e-8f, kSidereal = 1.0027379f;
constexpr float kHalfShare = 0.95f, kHalfPaid = 6.0f, kSlowestTried = 2.5f * kStep, kApart = 0.03f, kLow = 1.5f;
constexpr float kStiff = 2.5e-4f;  // ridge of a harmonic, times the square of its number

struct Folds {
  explicit Folds(int length)
      : scores(length), root(length + kLine), value(length + kLine), once_cos(length + kLine),
        once_sin(length + kLine), columns(2 * kMostHarmonics * (length + kLine)) {}

  void write(const Points& points, int bands, Search& search, Periodogram& sums, Outputs& outputs);

 private:
  Scores scores;
  Row root, value, once_cos, once_sin, columns;  // root: of trust; value and columns are times that
  float trust = 0.0f, alike = 0.0f, step = 0.0f;
  float left[kMostHarmonics];               // share of the variance, by the first harmonics
  double wave[2 * kMostHarmonics];          // coefficients of cosine and sine of every harmonic

  void take(const Points& points, int bands);
  void set();
  void fit(float frequency, int harmonics, int bands);
  float refined(float frequency, int bands);
  float likely(float frequency, int bands);
  float tilted(float frequency, int bands) { return likely(frequency, bands) * (1.0f - 0.02f / kFastest * frequency); }
  double squared(int harmonic) const {
    return wave[2 * harmonic] * wave[2 * harmonic] + wave[2 * harmonic + 1] * wave[2 * harmonic + 1];
  }
  void write_shape(float frequency, int bands, Outputs& outputs);
  void write_moments(Outputs& outputs) const;
};

// Flux less its band's mean, in standard deviations of the band, clipped.
inline void Folds::take(const Points& points, int bands) {
  scores.count = 0;
  scores.all_searched = 0;
  for (int band = 0; band < bands; ++band) {
    scores.begin[band] = scores.count;
    const int first = points.begin[band], last = points.begin[band + 1];
    const double per = std::max(last - first, 1);
    double mean = 0, variance = 0, weights = 0, shift = 0, spread = 0, expected = 0;
    for (int point = first; point < last; ++point) mean += points.flux[point];
    mean /= per;
    for (int point = first; point < last; ++point) {
      const double away = points.flux[point] - mean;
      variance += away * away;
    }
    variance /= per;
    for (int point = first; point < last; ++point) {
      const double error = points.flux_err[point], weight = 1 / (error * error + kDoubtful * variance);
      weights += weight;
      shift += weight * (points.flux[point] - mean);
    }
    const float middle = static_cast<float>(mean + shift / std::max(weights, 1e-30));
    const float most = kClipped * static_cast<float>(std::sqrt(variance));
    for (int point = first; point < last; ++point) {
      const double away = within(points.flux[point] - middle, -most, most);
      spread += away * away;
      expected += static_cast<double>(points.flux_err[point]) * points.flux_err[point];
    }
    spread /= per;
    expected /= per;
    const bool varies = last - first >= kFewestPoints && spread > kLeastSpread;
    scores.searched[band] = varies ? static_cast<float>(last - first) : 0.0f;
    scores.all_searched += scores.searched[band];
    if (!varies) continue;
    const float signal = static_cast<float>(std::max(spread - expected, kLeastSignal * spread));
    const float scale = 1.0f / std::sqrt(static_cast<float>(spread));
    for (int point = first; point < last; ++point, ++scores.count) {
      const float error = points.flux_err[point];
      const float here = scale * within(points.flux[point] - middle, -most, most);
      scores.trust[scores.count] = signal / std::max(signal + error * error, 1e-30f);
      scores.score[scores.count] = scores.trust[scores.count] * here;
      scores.away[scores.count] = here;
      scores.time[scores.count] = points.time[point];
    }
  }
  scores.begin[bands] = scores.count;
  scores.lines = whole_lines(scores.count);
  for (int place = scores.count; place < scores.lines; ++place)
    scores.time[place] = scores.score[place] = scores.trust[place] = scores.away[place] = 0.0f;
}

// What all fits share.
inline void Folds::set() {
  double trusts = 0;
  float first = INFINITY, last = -INFINITY;
  for (int point = 0; point < scores.lines; ++point) {
    trusts += scores.trust[point];
    root[point] = std::sqrt(scores.trust[point]);
    value[point] = root[point] * scores.away[point];
    if (point >= scores.count) continue;
    first = std::min(first, scores.time[point]);
    last = std::max(last, scores.time[point]);
  }
  trust = static_cast<float>(trusts);
  alike = trust * trust / std::max(dot(scores.trust, scores.trust, scores.lines), kLeastSum);
  step = 0.15f / std::max(last - first, 10.0f);
}

// Sum of products of some points.
inline float dot_between(const float* a, const float* b, int first, int last) {
  Vector sums{};
  for (; first + kWidth <= last; first += kWidth) sums = mad(load(a + first), load(b + first), sums);
  float sum = total(sums);
  for (; first < last; ++first) sum += a[first] * b[first];
  return sum;
}

// Weighted least squares with a mean for every band: elimination, then the coefficients from the last to the first.
inline void Folds::fit(float frequency, int harmonics, int bands) {
  const int lines = scores.lines, values = 2 * harmonics;
  const float* column[2 * kMostHarmonics + 1];
  waves(frequency, scores.time, lines, once_cos, once_sin);
  for (int harmonic = 0; harmonic < harmonics; ++harmonic) {
    float *__restrict cosine = columns + 2 * harmonic * lines, *__restrict sine = cosine + lines;
    for (int point = 0; point < lines; ++point) {
      const float c = harmonic ? column[2 * harmonic - 2][point] : root[point];
      const float s = harmonic ? column[2 * harmonic - 1][point] : 0.0f;
      cosine[point] = c * once_cos[point] - s * once_sin[point];
      sine[point] = s * once_cos[point] + c * once_sin[point];
    }
    column[2 * harmonic] = cosine;
    column[2 * harmonic + 1] = sine;
  }
  column[values] = value;
  double square[2 * kMostHarmonics + 1][2 * kMostHarmonics + 1];
  for (int one = 0; one <= values; ++one)
    for (int other = one; other <= values; ++other) square[one][other] = dot(column[one], column[other], lines);
  for (int band = 0; band < bands; ++band) {
    const int first = scores.begin[band], last = scores.begin[band + 1];
    if (first == last) continue;
    const float weight = std::max(dot_between(root, root, first, last), kLeastSum);
    float mean[2 * kMostHarmonics + 1];
    for (int one = 0; one <= values; ++one) mean[one] = dot_between(root, column[one], first, last);
    for (int one = 0; one <= values; ++one)
      for (int other = one; other <= values; ++other)
        square[one][other] -= static_cast<double>(mean[one]) * mean[other] / weight;
  }
  const double whole = std::max(square[values][values], static_cast<double>(kLeastSum));
  for (int one = 0; one < values; ++one)
    square[one][one] += static_cast<double>(kStiff) * (1 + one / 2) * (1 + one / 2) * trust;
  for (int pivot = 0; pivot < values; ++pivot) {
    const double most = std::max(square[pivot][pivot], static_cast<double>(kLeastSum));
    for (int one = pivot + 1; one <= values; ++one) {
      const double share = square[pivot][one] / most;
      for (int other = one; other <= values; ++other) square[one][other] -= share * square[pivot][other];
    }
    if (pivot % 2) left[pivot / 2] = within(static_cast<float>(square[values][values] / whole), kLeastResidual, 1.0f);
  }
  for (int one = values - 1; one >= 0; --one) {
    double rest = square[one][values];
    for (int other = one + 1; other < values; ++other) rest -= square[one][other] * wave[other];
    wave[one] = rest / std::max(square[one][one], static_cast<double>(kLeastSum));
  }
}

// The frequency near one where three harmonics fit best, within less than the width of a peak.
inline float Folds::refined(float frequency, int bands) {
  float best = frequency, least = INFINITY;
  for (int around = -4; around <= 4; ++around) {
    const float near = frequency + step * static_cast<float>(around);
    if (near <= 1e-4f) continue;
    fit(near, 3, bands);
    if (left[2] < least) least = left[2], best = near;
  }
  return best;
}

// Likelihood of the best number of harmonics, each paid for.
inline float Folds::likely(float frequency, int bands) {
  fit(frequency, kHarmonics, bands);
  const float paid = 2.0f * std::log(std::max(alike, 1.0f));
  float gain = 0.0f;
  for (int harmonic = 0; harmonic < kHarmonics; ++harmonic)
    gain = std::max(gain, -alike * std::log(left[harmonic]) - (harmonic + 1) * paid);
  return gain;
}

inline void Folds::write_shape(float frequency, int bands, Outputs& outputs) {
  fit(frequency, kHarmonics, bands);
  const float all = left[kHarmonics - 1];
  outputs.add(left[0], true);
  outputs.add(left[1], true);
  outputs.add(all, true);
  const double once = std::max(std::sqrt(squared(0)), 1e-6), c1 = wave[0] / once, s1 = wave[1] / once;
  double c = c1, s = s1;
  for (const int harmonic : {1, 2}) {  // turned back by the angle of the first as often as its number says
    const double next = c * c1 - s * s1;
    s = s * c1 + c * s1;
    c = next;
    const double length = std::sqrt(squared(harmonic)), ratio = std::min(length / once, 3.0);
    const double scale = ratio / std::max(length, 1e-9), x = scale * wave[2 * harmonic], y = scale * wave[2 * harmonic + 1];
    outputs.add(static_cast<float>(ratio), true);
    outputs.add(static_cast<float>(x * c + y * s), true);
    outputs.add(static_cast<float>(y * c - x * s), true);
  }
  fit(0.5f * frequency, kMostHarmonics, bands);
  double odd = 0, even = 0;
  for (int harmonic = 0; harmonic < kMostHarmonics; ++harmonic) (harmonic % 2 ? even : odd) += squared(harmonic);
  outputs.add(all - left[kMostHarmonics - 1], true);
  outputs.add(std::min(static_cast<float>(std::sqrt(odd / (even + 1e-9))), 5.0f), true);
}

// Skewness and kurtosis of all points, and how many more are low than high, as a share.
inline void Folds::write_moments(Outputs& outputs) const {
  double second = 0, third = 0, fourth = 0, low = 0;
  for (int point = 0; point < scores.count; ++point) {
    const double here = scores.away[point], share = scores.trust[point], square = share * here * here;
    second += square;
    third += square * here;
    fourth += square * here * here;
    low += here < -kLow ? share : here > kLow ? -share : 0.0;
  }
  const double all = std::max(trust, kLeastSum), scatter = std::max(second / all, static_cast<double>(kLeastSum));
  outputs.add(static_cast<float>(third / all / (scatter * std::sqrt(scatter))), true);
  outputs.add(static_cast<float>(fourth / all / (scatter * scatter)), true);
  outputs.add(static_cast<float>(low / all), true);
}

inline void Folds::write(const Points& points, int bands, Search& search, Periodogram& sums, Outputs& outputs) {
  take(points, bands);
  if (scores.all_searched < kFewestScored) {
    for (int place = 0; place < kFoldCount; ++place) outputs.add(0.0f, false);
    return;
  }
  Peaks peaks;
  search.find(scores, sums, peaks);
  set();
  const float* found = search.frequency;
  float likelihood[kCandidates];
  for (int candidate = 0; candidate < kCandidates; ++candidate) likelihood[candidate] = tilted(found[candidate], bands);
  const auto top = [&](auto counts) {  // the first of the likeliest
    int best = -1;
    for (int candidate = 0; candidate < kCandidates; ++candidate)
      if (counts(candidate) && (best < 0 || likelihood[candidate] > likelihood[best])) best = candidate;
    return std::max(best, 0);
  };
  const int first = top([](int) { return true; }), second = top([&](int candidate) { return candidate != first; });
  float frequency = found[first], most = -INFINITY;
  for (const int candidate : {first, second}) {
    const float near = refined(std::max(found[candidate], kSlowestTried), bands);
    const float tried[kTried] = {near, 0.5f * near, 2.0f * near, std::fabs(near - kSidereal), near + kSidereal};
    for (int which = 0; which < kTried; ++which) {
      const float here = std::max(tried[which], kSlowestTried);
      float gain = tilted(here, bands);
      if (which == 1) gain = kHalfShare * gain - kHalfPaid;
      if (gain > most) most = gain, frequency = here;
    }
  }
  const int other = top([&](int candidate) {
    for (const float times : {1.0f, 0.5f, 2.0f})
      if (std::fabs(found[candidate] - times * frequency) <= kApart) return false;
    return true;
  });
  outputs.add(std::log10(frequency), true);
  outputs.add(std::log10(found[other]), true);
  outputs.add(std::log1p(likely(frequency, bands)), true);
  outputs.add(found[other] / frequency, true);
  outputs.add(likelihood[other] / std::max(most, 1e-3f), true);
  write_shape(frequency, bands, outputs);
  write_moments(outputs);
}

}  // namespace nightjar
