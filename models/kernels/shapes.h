// Flux and colours at days from the maximum, heights and widths: models/networks/statistics/shape_statistics.py.
#pragma once

#include "points.h"

namespace nightjar {

constexpr float kDays[] = {-40, -20, -10, -5, 0, 5, 10, 15, 20, 30, 45, 70, 110};
constexpr int kDayCount = 13;
constexpr float kLongestGap = 25.0f, kBeyond = 2.0f;  // days
constexpr float kLevels[] = {0.5f, 0.2f};             // of the maximum of a band
constexpr int kBlue = 1, kRed = 3;                    // bands compared where the one between is missing
constexpr float kLeastScale = 1e-6f, kLeastHeight = 1e-3f, kLeastInColour = 0.02f;

inline bool colour_apart(int bands) { return bands > kRed; }

inline int count_of_shapes(int bands) {
  return (bands + bands - 1 + colour_apart(bands)) * kDayCount + bands * (2 + 2 * 2);
}

struct Shapes {
  explicit Shapes(int length) : days(length + 1), relative(length + 1) {}

  Row days, relative;
  float sampled[kMostBands][kDayCount];
  bool defined[kMostBands][kDayCount];

  void write(const Points& points, int bands, float redshift, Outputs& outputs);

 private:
  void set(const Points& points, float redshift);
  void sample(const Points& points, int band, int day);
  void write_colour(int blue, int red, Outputs& outputs) const;
};

inline float sure(const Points& points, int point) { return points.flux[point] - points.flux_err[point]; }

// The first in the row of the points that are surest to be bright.
inline int brightest(const Points& points, int first, int last) {
  int top = first;
  for (int point = first + 1; point < last; ++point) {
    const float here = sure(points, point), most = sure(points, top);
    if (here > most || (here == most && points.order[point] < points.order[top])) top = point;
  }
  return top;
}

inline void Shapes::set(const Points& points, float redshift) {
  const float lasting = 1.0f + (redshift > 0 ? redshift : 0.0f);
  const int top = brightest(points, 0, points.real);  // without any, that is the one that stands for padding
  const float start = points.time[top], scale = std::max(points.flux[top], kLeastScale);
  for (int point = 0; point < points.count; ++point) {
    days[point] = (points.time[point] - start) / lasting;
    relative[point] = within(points.flux[point] / scale, -kFar, kFar);
  }
}

// Flux of a band at a day, interpolated between the points around it.
inline void Shapes::sample(const Points& points, int band, int day) {
  const float target = kDays[day];
  int before = -1, after = -1;
  for (int point = points.begin[band]; point < points.begin[band + 1]; ++point) {
    if (days[point] < target) {
      if (before < 0 || days[point] > days[before]) before = point;
    } else if (after < 0 || days[point] < days[after]) {
      after = point;
    }
  }
  float& value = sampled[band][day];
  bool& is_defined = defined[band][day];
  const float start = before < 0 ? -kFar : days[before], end = after < 0 ? kFar : days[after];
  if (before >= 0 && after >= 0) {
    const float share = (target - start) / std::max(end - start, 1e-6f);
    value = relative[before] + share * (relative[after] - relative[before]);
    is_defined = end - start <= kLongestGap + 0.5f * std::fabs(target);
  } else if (after >= 0) {
    value = relative[after];
    is_defined = end - target <= kBeyond;
  } else {
    value = before >= 0 ? relative[before] : 0.0f;
    is_defined = before >= 0 && target - start <= kBeyond;
  }
}

inline void Shapes::write_colour(int blue, int red, Outputs& outputs) const {
  for (int day = 0; day < kDayCount; ++day) {
    const float difference =
        std::log(std::max(sampled[blue][day], kLeastInColour)) - std::log(std::max(sampled[red][day], kLeastInColour));
    outputs.add(difference, defined[blue][day] && defined[red][day]);
  }
}

inline void Shapes::write(const Points& points, int bands, float redshift, Outputs& outputs) {
  set(points, redshift);
  for (int band = 0; band < bands; ++band)
    for (int day = 0; day < kDayCount; ++day) {
      sample(points, band, day);
      outputs.add(sampled[band][day], defined[band][day]);
    }
  for (int band = 0; band + 1 < bands; ++band) write_colour(band, band + 1, outputs);
  if (colour_apart(bands)) write_colour(kBlue, kRed, outputs);
  float height[kMostBands] = {}, day[kMostBands] = {};
  bool present[kMostBands];
  for (int band = 0; band < bands; ++band) {
    present[band] = points.begin[band] < points.begin[band + 1];
    if (!present[band]) continue;
    const int top = brightest(points, points.begin[band], points.begin[band + 1]);
    height[band] = std::max(static_cast<const float*>(relative)[top], kLeastHeight);
    day[band] = days[top];
  }
  for (int band = 0; band < bands; ++band) outputs.add(height[band], present[band]);
  for (int band = 0; band < bands; ++band) outputs.add(day[band], present[band]);
  for (const float level : kLevels) {
    float before[kMostBands], after[kMostBands];
    for (int band = 0; band < bands; ++band) {
      before[band] = after[band] = kFar;
      for (int point = points.begin[band]; point < points.begin[band + 1]; ++point) {
        if (!(relative[point] < level * height[band])) continue;
        const float away = days[point] - day[band];
        if (away < 0) before[band] = std::min(before[band], -away);
        if (away > 0) after[band] = std::min(after[band], away);
      }
    }
    for (int band = 0; band < bands; ++band) outputs.add(before[band], before[band] < kFar);
    for (int band = 0; band < bands; ++band) outputs.add(after[band], after[band] < kFar);
  }
}

}  // namespace nightjar
