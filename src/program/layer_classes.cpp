// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/layer_classes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "cadenza/program/layout.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::program {
namespace {

/// Largest number of classes of layers that are not full: each needs another plan for every tick.
constexpr std::size_t kMostClasses = 3;

/// Whether layers whose shares lie between these may form a class: shares are within a factor of 5
/// / 4. If a layer keeps f times as much as its plan assumes, servers with rows of long documents
/// are busier by up to f, those with short, dense documents are not. A class is weighed by its
/// mean, so no server is off by more than about sqrt(5 / 4) - 1 = 12 %, similar to the usual
/// tolerance of cad (10 %).
constexpr bool alike(std::int64_t least, std::int64_t most) {
  return 4 * most <= 5 * least;
}

/// A layer and its expected share of kept causal pairs, an integer, so that all ranks agree.
struct Kept {
  std::int64_t share = 0;
  int layer = 0;
  friend auto operator<=>(const Kept&, const Kept&) = default;
};

std::int64_t kept_share(const SparseRule& rule, std::span<const std::int64_t> lengths,
                        const SparseEstimate& estimate, int layer) {
  double kept = 0;
  double causal = 0;
  for (const std::int64_t length : lengths) {
    const Range all{0, length};
    if (rule.is_dense(length)) continue;
    const SparseDensity density = estimate.density(rule, length, std::array{layer});
    kept += static_cast<double>(Weights(Mask{}, &density, length).pairs(all));
    causal += static_cast<double>(Weights(Mask{}, SparseDensity::kUnit).pairs(all));
  }
  return causal == 0 ? 0 : std::llround(kept / causal * double{SparseDensity::kUnit});
}

/// Layers, ascending by share.
using Shares = std::vector<Kept>;

double width(const Shares& layers, std::size_t first, std::size_t last) {
  return static_cast<double>(layers[last].share) / static_cast<double>(layers[first].share);
}

/// Cuts a class where the wider of the two parts is as narrow as possible, and returns the upper
/// part.
Shares cut(Shares& layers) {
  std::size_t best = 0;
  double narrowest = 0;
  for (std::size_t at = 1; at < layers.size(); ++at) {
    const double wider = std::max(width(layers, 0, at - 1), width(layers, at, layers.size() - 1));
    if (best > 0 && wider >= narrowest) continue;
    best = at;
    narrowest = wider;
  }
  const auto begin = layers.begin() + static_cast<std::ptrdiff_t>(best);
  Shares rest(begin, layers.end());
  layers.erase(begin, layers.end());
  return rest;
}

/// Cuts the widest class until all are narrow enough or there are kMostClasses.
std::vector<Shares> split(Shares layers) {
  if (layers.empty()) return {};
  std::ranges::sort(layers);
  std::vector<Shares> classes = {std::move(layers)};
  while (classes.size() < kMostClasses) {
    const auto widest = std::ranges::max_element(
        classes, {}, [](const Shares& each) { return width(each, 0, each.size() - 1); });
    if (alike(widest->front().share, widest->back().share)) break;
    Shares rest = cut(*widest);
    classes.insert(widest + 1, std::move(rest));
  }
  return classes;
}

/// Row by row, the share of the tensor rank whose heads keep most.
SparseEstimate::Shares shares_of_budgets(const config::Experiment& e, int layer,
                                         std::int64_t length) {
  const std::int64_t heads = e.model.heads / e.parallel.tensor;
  SparseEstimate::Shares most{};
  for (std::int64_t tensor = 0; tensor < e.parallel.tensor; ++tensor) {
    SparseEstimate::Shares mean{};
    for (std::int64_t head = 0; head < heads; ++head) {
      const SparseRule rule = e.attention.sparse_rule(layer, tensor * heads + head);
      const SparseDensity density = SparseDensity::of_budgets(rule, length);
      for (std::size_t bin = 0; bin < mean.size(); ++bin) {
        mean[bin] += static_cast<double>(density.share(static_cast<std::int64_t>(bin))) /
                     (double{SparseDensity::kUnit} * static_cast<double>(heads));
      }
    }
    for (std::size_t bin = 0; bin < mean.size(); ++bin) most[bin] = std::max(most[bin], mean[bin]);
  }
  return most;
}

}  // namespace

SparseEstimate estimate_of_budgets(const config::Experiment& experiment,
                                   std::span<const std::int64_t> lengths) {
  if (experiment.attention.sparse.heads.empty()) return {};
  std::map<SparsePlace, SparseEstimate::Shares> shares;
  for (const std::int64_t length : lengths) {
    for (int layer = 0; layer < static_cast<int>(experiment.model.layers); ++layer) {
      const SparsePlace place = SparsePlace::of(layer, length);
      if (shares.contains(place)) continue;  // seen for a document of similar length
      shares.emplace(place, shares_of_budgets(experiment, layer, length));
    }
  }
  return SparseEstimate(std::move(shares));
}

std::vector<LayerClass> layer_classes(const config::Experiment& experiment,
                                      std::span<const std::int64_t> lengths,
                                      const SparseEstimate& estimate) {
  const SparseRule rule = experiment.attention.sparse_rule();
  const Layout layout(experiment);
  const bool asked =
      std::ranges::any_of(lengths, [&](std::int64_t length) { return !rule.is_dense(length); });
  // Without long documents, sparse layers have full attention, too.
  if (rule.block > 0 && !asked) return {LayerClass{}};
  // Where stages share a pool, one exchange serves several layers at once.
  const bool mixed = layout.pools_stages() && layout.pipeline() > 1;
  std::vector<LayerClass> classes;
  LayerClass full{{}, true};
  Shares others;
  for (int layer = 0; layer < static_cast<int>(experiment.model.layers); ++layer) {
    if (experiment.attention.is_full(layer)) {
      full.layers.push_back(layer);
    } else {
      const bool alone = asked && !mixed;
      others.push_back({alone ? kept_share(rule, lengths, estimate, layer) : 1, layer});
    }
  }
  if (!full.layers.empty()) classes.push_back(full);
  for (const Shares& each : split(std::move(others))) {
    LayerClass& made = classes.emplace_back();
    for (const Kept& kept : each) made.layers.push_back(kept.layer);
    std::ranges::sort(made.layers);
  }
  if (classes.size() == 1) classes.front().layers.clear();
  return classes;
}

}  // namespace cadenza::program
