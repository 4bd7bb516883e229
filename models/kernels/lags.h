// How alike points are that lie so many days apart: lag_statistics of models/networks/statistics/curve_statistics.py.
//
// The graph compares all pairs with all lags. Here points are sorted by time, so all partners of a point within a lag
// are neighbours, and their scores the difference of two running sums.
#pragma once

#include "points.h"

namespace nightjar {

constexpr float kLags[] = {0.0f, 0.1f, 0.6f, 1.5f, 2.5f, 4.0f, 7.0f, 12.0f, 20.0f, 35.0f, 60.0f, 120.0f, 250.0f, 5000.0f};
constexpr int kLagCount = 13;
constexpr float kFewestPairs = 3.0f;  // counted twice, and one less

struct Lags {
  explicit Lags(int length) : scores(length), running(length + 1) {}

  struct TimedScore {
    float time, score;
  };
  std::vector<TimedScore> scores;
  std::vector<double> running;

  void write(const Points& points, int bands, Outputs& outputs);

 private:
  int take(const Points& points, int bands);
};

// Standard scores of the points of bands that vary, by time; returns how many.
inline int Lags::take(const Points& points, int bands) {
  int count = 0;
  for (int band = 0; band < bands; ++band) {
    const float scatter = std::sqrt(points.variance[band]);
    if (!(points.number[band] >= kFewestPoints && scatter > kLeastScatter)) continue;
    const float scale = 1.0f / std::max(scatter, kLeastScatter);
    for (int point = points.begin[band]; point < points.begin[band + 1]; ++point) {
      const float time = points.time[point];
      scores[count++] = {time == time ? time : kFar, scale * points.away[point]};  // a NaN would break the order
    }
  }
  const auto earlier = [](const TimedScore& a, const TimedScore& b) { return a.time < b.time; };
  std::sort(scores.begin(), scores.begin() + count, earlier);
  running[0] = 0;
  for (int point = 0; point < count; ++point) running[point + 1] = running[point] + scores[point].score;
  return count;
}

inline void Lags::write(const Points& points, int bands, Outputs& outputs) {
  const int count = take(points, bands);
  double product[kLagCount] = {};
  int64_t pairs[kLagCount] = {};
  int end[kLagCount] = {};  // behind the last later point that is nearer than the end of a lag
  for (int point = 0; point < count; ++point) {
    int nearer = point + 1;
    for (int lag = 0; lag < kLagCount; ++lag) {
      int& behind = end[lag];
      behind = std::max(behind, nearer);
      while (behind < count && scores[behind].time - scores[point].time < kLags[lag + 1]) ++behind;
      product[lag] += scores[point].score * (running[behind] - running[nearer]);
      pairs[lag] += behind - nearer;
      nearer = behind;
    }
  }
  float number[kLagCount];
  for (int lag = 0; lag < kLagCount; ++lag) {
    number[lag] = static_cast<float>(2 * pairs[lag]);
    const bool enough = number[lag] > kFewestPairs;
    outputs.add(static_cast<float>(2 * product[lag]) / std::max(number[lag], 1.0f), enough);
  }
  for (int lag = 0; lag < kLagCount; ++lag) outputs.add(std::log1p(number[lag] / 2.0f) / 2.0f, true);
}

}  // namespace nightjar
