// Brightness, colours, time scales and a coarse sampling: models/networks/statistics/curve_statistics.py.
#pragma once

#include "points.h"

namespace nightjar {

constexpr float kEdges[] = {-100, -40, -20, -10, -4, 4, 10, 20, 40, 80, 160, 400};  // days from the maximum
constexpr int kSampled = 11;
constexpr float kShortest = 0.01f;  // days

inline int count_of_curves(int bands) { return bands * (15 + kSampled) + 7 + bands - 1; }

// The largest numbers of a group of points; minus kFar where there are none.
struct Extremes {
  float soft = -kFar, flux = -kFar, snr = -kFar, before_least = -kFar, before_start = -kFar, end = -kFar;
  float before_peak = -kFar, before_bright = -kFar, bright_end = -kFar;
};

template <class Inside>
Extremes extremes(const Points& points, int first, int last, Inside inside) {
  Extremes most;
  int members = 0;
  for (int point = first; point < last; ++point) {
    if (!inside(point)) continue;
    const float soft = points.soft[point], flux = points.flux[point], time = points.time[point];
    if (!members++ && last - first == points.length) most.snr = -INFINITY;  // nothing outside holds it up
    most.soft = std::max(most.soft, soft);
    most.flux = std::max(most.flux, flux);
    most.snr = std::max(most.snr, flux / points.flux_err[point]);
    most.before_least = std::max(most.before_least, -soft);
    most.before_start = std::max(most.before_start, -time);
    most.end = std::max(most.end, time);
  }
  if (members < points.length) most.snr = std::max(most.snr, -kFar);
  const float half = most.flux * 0.5f;
  for (int point = first; point < last; ++point) {
    if (!inside(point)) continue;
    const float time = points.time[point];
    if (points.soft[point] >= most.soft) most.before_peak = std::max(most.before_peak, -time);
    if (points.flux[point] >= half) {
      most.before_bright = std::max(most.before_bright, -time);
      most.bright_end = std::max(most.bright_end, time);
    }
  }
  return most;
}

// Sums over the points of a band: detections, cubes of deviations, mean squashed flux at its first and last time.
struct BandSums {
  float detections, cubes, first, last;
};

inline BandSums band_sums(const Points& points, int band, const Extremes& most) {
  double cubes = 0, first = 0, last = 0;
  int detections = 0, firsts = 0, lasts = 0;
  for (int point = points.begin[band]; point < points.begin[band + 1]; ++point) {
    detections += points.flux[point] / points.flux_err[point] >= kDetection;
    cubes += points.away[point] * points.away[point] * points.away[point];
    if (-points.time[point] >= most.before_start) first += points.soft[point], ++firsts;
    if (points.time[point] >= most.end) last += points.soft[point], ++lasts;
  }
  return {static_cast<float>(detections), static_cast<float>(cubes), static_cast<float>(first) / std::max(firsts, 1),
          static_cast<float>(last) / std::max(lasts, 1)};
}

// Log of a duration, or of a number, plus one; with its sign for a delay.
inline float log_of(float days) { return std::copysign(std::log1p(std::min(std::fabs(days), kFar)), days); }

inline void write_bands(const Points& points, int bands, const Extremes* most, const BandSums* sums,
                        float before_first, Outputs& outputs) {
  const auto each = [&](auto value, float scale, auto defined) {
    for (int band = 0; band < bands; ++band) outputs.add(value(band) / scale, defined(band));
  };
  const auto rise = [&](int b) { return most[b].before_start - most[b].before_peak; };
  const auto fall = [&](int b) { return most[b].end + most[b].before_peak; };
  const auto speed = [](float change, float days) { return std::asinh(20.0f * change / std::max(days, kShortest)); };
  const auto scatter = [&](int b) { return std::sqrt(points.variance[b]); };
  const auto any = [&](int b) { return points.number[b] > 0; };
  const auto several = [&](int b) { return points.number[b] > 2; };
  const auto always = [](int) { return true; };
  each([&](int b) { return log_of(points.number[b]); }, 2.0f, always);
  each([&](int b) { return log_of(sums[b].detections); }, 2.0f, always);
  each([&](int b) { return most[b].soft; }, 3.0f, any);
  each([&](int b) { return most[b].before_least; }, -3.0f, any);
  each([&](int b) { return points.mean[b]; }, 3.0f, any);
  each([&](int b) { return sums[b].last; }, 3.0f, any);
  each([&](int b) { return std::asinh(most[b].snr); }, 3.0f, any);
  each(scatter, 1.0f, several);
  each([&](int b) { return std::log(1e-3f + points.chi_square[b] / std::max(points.number[b] - 1.0f, 1.0f)); },
       static_cast<float>(2.0 * 2.302585092994046), several);
  each([&](int b) {
    const float cube = scatter(b) * scatter(b) * scatter(b);
    return within(sums[b].cubes / std::max(points.number[b], 1.0f) / (cube + 1e-6f), -5.0f, 5.0f);
  }, 2.0f, several);
  each([&](int b) { return log_of(-most[b].before_peak + before_first); }, 3.0f, any);
  each([&](int b) { return log_of(most[b].end + most[b].before_start); }, 3.0f, any);
  each([&](int b) { return speed(most[b].soft - sums[b].first, rise(b)); }, 2.0f,
       [&](int b) { return std::min(rise(b), points.number[b]) > 0; });
  each([&](int b) { return speed(sums[b].last - most[b].soft, fall(b)); }, 2.0f,
       [&](int b) { return std::min(fall(b), points.number[b]) > 0; });
  each([&](int b) { return log_of(most[b].bright_end + most[b].before_bright); }, 3.0f,
       [&](int b) { return most[b].bright_end > -kFar; });
}

// Mean flux of every band between days before and after the maximum.
inline void write_sampling(const Points& points, int bands, float before, Outputs& outputs) {
  double sum[kSampled][kMostBands] = {};
  int number[kSampled][kMostBands] = {};
  for (int point = 0; point < points.begin[bands]; ++point) {
    const float days = points.time[point] + before;
    for (int span = 0; span < kSampled; ++span) {
      if (days >= kEdges[span] && days < kEdges[span + 1]) {
        sum[span][points.band_of[point]] += points.soft[point];
        ++number[span][points.band_of[point]];
      }
    }
  }
  for (int span = 0; span < kSampled; ++span)
    for (int band = 0; band < bands; ++band)
      outputs.add(static_cast<float>(sum[span][band]) / std::max(number[span][band], 1) / 3.0f, number[span][band] > 0);
}

inline void write_curve(const Points& points, int bands, float redshift, Outputs& outputs) {
  Extremes most[kMostBands];
  BandSums sums[kMostBands];
  float number = 0, detections = 0;
  const auto in_band = [](int) { return true; };
  const auto detected = [&](int point) { return points.flux[point] / points.flux_err[point] >= kDetection; };
  for (int band = 0; band < bands; ++band) {
    most[band] = extremes(points, points.begin[band], points.begin[band + 1], in_band);
    sums[band] = band_sums(points, band, most[band]);
    number += points.number[band];
    detections += sums[band].detections;
  }
  const Extremes whole = extremes(points, 0, points.real, in_band);
  const Extremes of_detected = extremes(points, 0, points.real, detected);
  const float before = detections > 0 ? of_detected.before_peak : whole.before_peak;
  write_bands(points, bands, most, sums, detections > 0 ? of_detected.before_start : 0.0f, outputs);
  outputs.add(log_of(number) / 3.0f, number > 0);
  outputs.add(log_of(whole.before_start + whole.end) / 3.0f, number > 0);
  outputs.add(detections / number, number > 0);
  outputs.add(log_of(whole.before_start - of_detected.before_start) / 3.0f, detections > 0);
  outputs.add(log_of(of_detected.before_start + of_detected.end) / 3.0f, detections > 0);
  outputs.add(log_of(whole.end + before) / 3.0f, number > 0);
  outputs.add(std::log(std::max(redshift > 0 ? redshift : 1.0f, 1e-3f)) / 2.0f, redshift > 0);
  for (int band = 0; band + 1 < bands; ++band)
    outputs.add(most[band].soft - most[band + 1].soft, points.number[band] * points.number[band + 1] > 0);
  write_sampling(points, bands, before, outputs);
}

}  // namespace nightjar
