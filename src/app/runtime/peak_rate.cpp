// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/peak_rate.hpp"

#include <algorithm>
#include <array>

namespace cadenza::app {
namespace {

/// Square ones and tall ones: libraries multiply them in different ways.
constexpr std::array<PeakProduct, 9> kProducts = {{{256, 256},
                                                   {1024, 256},
                                                   {512, 512},
                                                   {2048, 512},
                                                   {1024, 1024},
                                                   {4096, 1024},
                                                   {2048, 2048},
                                                   {8192, 2048},
                                                   {4096, 4096}}};
constexpr double kLongest = 0.015;  // seconds of one product
constexpr double kEnough = 0.02;    // seconds of all repetitions of one
constexpr int kLeast = 3;           // the first may prepare what later ones use

}  // namespace

double peak_rate(const std::function<double(const PeakProduct&)>& seconds) {
  double peak = 0;
  for (const PeakProduct& product : kProducts) {
    if (product.flops() > peak * kLongest && peak > 0) break;
    double spent = 0;
    for (int repetition = 0; repetition < kLeast || spent < kEnough; ++repetition) {
      const double once = seconds(product);
      spent += once;
      peak = std::max(peak, product.flops() / once);
    }
  }
  return peak;
}

}  // namespace cadenza::app
