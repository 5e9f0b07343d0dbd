// SPDX-License-Identifier: Apache-2.0
// A sweep's YAML, and the experiments of the first and the last of its points.
#include "cadenza/config/sweep.hpp"

#include "cadenza/base/error.hpp"
#include "readers.hpp"
#include "small.hpp"

namespace cadenza::fuzz {
namespace {

constexpr const char* kBaseText = R"(
model: {layers: 2, d_model: 64, heads: 4, kv_heads: 2, ffn: 96, vocab: 64}
data: {source: synthetic, documents: 40, max_document: 256, lengths: {median: 60, max: 256}}
batch: {tokens: 1024, microbatch: 256}
)";

}  // namespace

void read_sweep(Bytes input) {
  const config::Sweep sweep = config::parse_sweep(text_of(input), "sweep.yaml");
  const std::vector<config::SweepPoint> points = config::points_of(sweep);
  if (points.empty()) return;
  static const config::Base base = config::parse_base(kBaseText, "base.yaml");
  for (const config::SweepPoint& point : {points.front(), points.back()}) {
    require(point.labels.size() == sweep.axes.size(), "{} labels of {} axes", point.labels.size(),
            sweep.axes.size());
    config::experiment_of(point, base, {}, nullptr, small_model);
  }
}

}  // namespace cadenza::fuzz
