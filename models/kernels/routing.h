// Experts chosen by band, and router entropy, of each light curve.
//
// Tokens are packed: in every layer the [CLS] tokens of all rows come first, where there are any, then the observations
// of all rows in order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nightjar {

struct RoutingInputs {
  const int64_t* expert;  // [layers * tokens, kept]
  const float* logits;    // [layers * tokens, experts]
  const int64_t* band;    // [rows, length]
  const bool* mask;       // [rows, length]
  int64_t rows, length, layers, tokens, leading, kept, experts, bands;  // leading: [CLS] tokens of a layer

  bool valid() const {
    if (std::count(mask, mask + rows * length, true) + leading != tokens) return false;
    for (int64_t at = 0; at < rows * length; ++at)
      if (mask[at] && (band[at] < 0 || band[at] >= bands)) return false;
    for (int64_t at = 0; at < layers * tokens * kept; ++at)
      if (expert[at] < 0 || expert[at] >= experts) return false;
    return true;
  }
};

// Entropy of the softmax of logits, nats: log(sum of exp(l - max)) - mean of (l - max) under the softmax.
inline float entropy_of(const float* logits, int64_t experts) {
  const float largest = *std::max_element(logits, logits + experts);
  float total = 0, weighted = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const float logit = logits[expert] - largest, weight = std::exp(logit);
    total += weight;
    weighted += weight * logit;
  }
  return std::log(total) - weighted / total;
}

// Write the choices [rows, layers, bands, experts], and the mean entropy [rows, layers].
inline void write_routing(const RoutingInputs& in, float* counts, float* entropy) {
  std::fill(counts, counts + in.rows * in.layers * in.bands * in.experts, 0.0f);
  int64_t first = in.leading;
  for (int64_t row = 0; row < in.rows; ++row) {
    const int64_t* band = in.band + row * in.length;
    const bool* mask = in.mask + row * in.length;
    const int64_t points = std::count(mask, mask + in.length, true);
    for (int64_t layer = 0; layer < in.layers; ++layer) {
      float* table = counts + (row * in.layers + layer) * in.bands * in.experts;
      int64_t token = layer * in.tokens + first;
      float sum = 0;
      for (int64_t column = 0; column < in.length; ++column) {
        if (!mask[column]) continue;
        for (int64_t choice = 0; choice < in.kept; ++choice)
          ++table[band[column] * in.experts + in.expert[token * in.kept + choice]];
        sum += entropy_of(in.logits + token * in.experts, in.experts);
        ++token;
      }
      entropy[row * in.layers + layer] = sum / static_cast<float>(points);
    }
    first += points;
  }
}

}  // namespace nightjar
