// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/stages.hpp"

#include <queue>
#include <tuple>

#include "cadenza/base/at.hpp"
#include "cadenza/cost/flops.hpp"

namespace cadenza::program {
namespace {

/// Where the next layer costs least.
struct Share {
  std::int64_t work = 0;      ///< so far: weights that a token meets
  std::int64_t priority = 0;  ///< the lower gets the next of equals
  std::int64_t layers = 1;    ///< so far
  std::size_t of = 0;
  bool operator<(const Share& other) const {  // std::priority_queue pops the largest
    return std::tie(work, priority) > std::tie(other.work, other.priority);
  }
};

/// Gives layers that are left one by one to the share with least work, which for equal layers makes
/// the most work of a share least. @return layers of each share
std::vector<std::int64_t> deal(std::int64_t left, std::int64_t layer, std::vector<Share> shares) {
  std::vector<std::int64_t> layers(shares.size());
  for (const Share& share : shares) layers[share.of] = share.layers;
  std::priority_queue<Share> next({}, std::move(shares));
  for (; left > 0; --left) {
    Share share = next.top();
    next.pop();
    share.work += layer;
    layers[share.of] = ++share.layers;
    next.push(share);
  }
  return layers;
}

/// Layers by part where they do not divide.
std::vector<std::int64_t> dealt(const config::Experiment& e) {
  const std::int64_t stages = e.parallel.pipeline, chunks = e.parallel.chunks;
  const std::int64_t layer = cost::layer_parameters(e.model);
  const auto head = [&](bool last) { return last ? e.model.d_model * e.model.vocab : 0; };
  std::vector<Share> of_stages;
  for (std::int64_t s = 0; s < stages; ++s) {
    of_stages.push_back({chunks * layer + head(s + 1 == stages), -s, chunks, at(s)});
  }
  const auto by_stage = deal(e.model.layers - stages * chunks, layer, std::move(of_stages));
  std::vector<std::int64_t> parts(static_cast<std::size_t>(stages * chunks));
  for (std::int64_t s = 0; s < stages; ++s) {
    std::vector<Share> of_chunks;
    for (std::int64_t c = 0; c < chunks; ++c) {
      const bool last = s + 1 == stages && c + 1 == chunks;
      of_chunks.push_back({layer + head(last), c, 1, at(c)});
    }
    const auto by_chunk = deal(by_stage[at(s)] - chunks, layer, std::move(of_chunks));
    for (std::int64_t c = 0; c < chunks; ++c) parts[at(c * stages + s)] = by_chunk[at(c)];
  }
  return parts;
}

}  // namespace

std::vector<Range> stage_layers(const config::Experiment& e) {
  const std::int64_t count = e.parallel.pipeline * e.parallel.chunks;
  std::vector<std::int64_t> layers = e.parallel.stages;
  if (layers.empty() && e.model.layers % count == 0) {
    layers.assign(static_cast<std::size_t>(count), e.model.layers / count);
  }
  if (layers.empty()) layers = dealt(e);
  std::vector<Range> ranges;
  std::int64_t first = 0;
  for (const std::int64_t mine : layers) {
    ranges.push_back({first, first + mine});
    first += mine;
  }
  return ranges;
}

}  // namespace cadenza::program
