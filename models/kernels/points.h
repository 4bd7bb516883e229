// The points of one light curve as every statistic looks at them: models/networks/statistics/points.py, row by row.
//
// Points are grouped by their bands, in each in the order in which they came; those of no band come last, and padding
// is left out but for one point, which stands for all of it. Sums over a band are added up in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vectors.h"

namespace nightjar {

constexpr float kSoft = 3.0f, kFar = 1e9f, kLeastError = 1e-6f, kSystematic = 0.02f, kLeastScatter = 1e-3f;
constexpr float kDetection = 5.0f;
constexpr float kFewestPoints = 3.0f;
constexpr int kMostBands = 32;

// Attributes of the operator.
struct Attributes {
  int bands;
  bool lags;
  int periods;  // none, summed, fitted
  int shapes;   // none, shapes, folds as well
};

// One row of the inputs.
struct Curve {
  const float *flux, *flux_err, *time;
  const int64_t* band;
  const bool* mask;
  float redshift;
  int length;
};

inline float within(float value, float low, float high) { return std::min(std::max(value, low), high); }

// Where the statistics of a row are written, one after the other.
struct Outputs {
  float* value;
  bool* defined;

  void add(float number, bool is_defined) {
    *value++ = is_defined ? number : 0.0f;
    *defined++ = is_defined;
  }
};

struct Points {
  explicit Points(int length)
      : flux(length + 1), flux_err(length + 1), time(length + 1), soft(length + 1), noise(length + 1),
        away(length + 1), pull(length + 1), order(length + 1), band_of(length + 1) {}

  int length = 0;    // of the row, padding included
  int count = 0;     // points that follow, with the one that stands for padding
  int real = 0;      // of them, without it
  int begin[kMostBands + 1] = {};  // of every band, and behind the last
  Row flux, flux_err, time, soft, noise, away, pull;
  std::vector<int> order;    // place in the row
  std::vector<int> band_of;  // -1: none

  float number[kMostBands], mean[kMostBands], variance[kMostBands], spread[kMostBands], expected[kMostBands],
      chi_square[kMostBands];

  void take(const Curve& curve, int bands);

 private:
  void sort(const Curve& curve, int bands);
  void sum(int band);
};

inline void Points::sort(const Curve& curve, int bands) {
  int sizes[kMostBands + 1] = {};  // those of no band last
  int padding = -1;
  for (int place = 0; place < curve.length; ++place) {
    if (!curve.mask[place]) {
      if (padding < 0) padding = place;
      continue;
    }
    const int64_t band = curve.band[place];
    ++sizes[band >= 0 && band < bands ? band : bands];
  }
  int next[kMostBands + 1];
  real = 0;
  for (int band = 0; band <= bands; ++band) {
    begin[band] = next[band] = real;
    real += sizes[band];
  }
  for (int place = 0; place < curve.length; ++place) {
    if (!curve.mask[place]) continue;
    const int64_t band = curve.band[place];
    const bool in_range = band >= 0 && band < bands;
    const int to = next[in_range ? band : bands]++;
    order[to] = place;
    band_of[to] = in_range ? static_cast<int>(band) : -1;
  }
  count = real;
  if (padding >= 0) {
    order[count] = padding;
    band_of[count++] = -1;
  }
}

inline void Points::take(const Curve& curve, int bands) {
  length = curve.length;
  sort(curve, bands);
  for (int point = 0; point < count; ++point) {
    const int place = order[point];
    const bool is_real = point < real;
    flux[point] = is_real ? within(curve.flux[place], -kFar, kFar) : 0.0f;
    flux_err[point] = is_real ? within(curve.flux_err[place], kLeastError, kFar) : 1.0f;
    time[point] = is_real ? curve.time[place] : 0.0f;
  }
  for (int point = 0; point < count; ++point) {
    noise[point] = flux_err[point] * flux_err[point] / (flux[point] * flux[point] + kSoft * kSoft);
    soft[point] = std::asinh(flux[point] / kSoft);
    away[point] = pull[point] = soft[point];
  }
  for (int band = 0; band < bands; ++band) sum(band);
}

inline void Points::sum(int band) {
  const int first = begin[band], last = begin[band + 1];
  double softs = 0, pulled = 0, fluxes = 0, noises = 0, weights = 0, precisions = 0;
  for (int point = first; point < last; ++point) {
    const float weight = 1.0f / (noise[point] + kSystematic * kSystematic);
    const float precision = 1.0f / (flux_err[point] * flux_err[point]);
    softs += soft[point];
    pulled += weight * soft[point];
    fluxes += precision * flux[point];
    noises += noise[point];
    weights += weight;
    precisions += precision;
  }
  number[band] = static_cast<float>(last - first);
  const float per = std::max(number[band], 1.0f);
  mean[band] = static_cast<float>(softs) / per;
  const float weighted = static_cast<float>(pulled) / std::max(static_cast<float>(weights), 1e-30f);
  const float weighted_flux = static_cast<float>(fluxes) / std::max(static_cast<float>(precisions), 1e-30f);
  double variances = 0, spreads = 0, chi_squares = 0;
  for (int point = first; point < last; ++point) {
    away[point] = soft[point] - mean[band];
    pull[point] = soft[point] - weighted;
    const float far = within((flux[point] - weighted_flux) / flux_err[point], -kFar, kFar);
    variances += away[point] * away[point];
    spreads += pull[point] * pull[point];
    chi_squares += far * far;
  }
  variance[band] = static_cast<float>(variances) / per;
  spread[band] = static_cast<float>(spreads) / per;
  expected[band] = static_cast<float>(noises) / per;
  chi_square[band] = static_cast<float>(chi_squares);
}

}  // namespace nightjar
