// SPDX-License-Identifier: Apache-2.0
#include "plan/report/picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace cadenza::plan {
namespace {

constexpr std::int64_t kRows = 16;  // of a picture in characters
constexpr std::size_t kPanels = 4;  // side by side
constexpr std::string_view kSymbols = "0123456789abcdefghijklmnopqrstuvwxyz";

/// The attention matrix of one document and one slice of its heads, in square cells; cell (row,
/// column) stands for the query in its middle and the key in its middle.
class Picture {
 public:
  static constexpr Rank kMasked = -1;  ///< the key is behind the query
  static constexpr Rank kNobody = -2;  ///< not computed by this plan: another half's queries

  /// Of a striped document, whose stripes are finer than cells, the first tokens are shown, a run a
  /// cell.
  Picture(const Plan& plan, int document, Range heads);

  std::int64_t size() const { return size_; }
  std::int64_t tokens() const { return tokens_; }  ///< of the text that are shown
  Rank server(std::int64_t row, std::int64_t column) const {
    return servers_[static_cast<std::size_t>(row * size_ + column)];
  }

 private:
  std::int64_t size_;
  std::int64_t tokens_;
  std::vector<Rank> servers_;
};

/// How a plan counts the tokens at the text positions [0, count).
std::vector<std::int64_t> counts_of_positions(const TokenOrder& order, std::int64_t length,
                                              std::int64_t count) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(count));
  std::iota(counts.begin(), counts.end(), 0);
  if (order.natural()) return counts;
  for (std::int64_t token = 0; token < length; ++token) {
    const std::int64_t position = position_of(order, length, token);
    if (position < count) counts[static_cast<std::size_t>(position)] = token;
  }
  return counts;
}

std::vector<const PlacedTask*> tasks_of(const Plan& plan, int document, Range heads) {
  std::vector<const PlacedTask*> tasks;
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      if (placed.task.document == document && placed.task.heads.contains(heads)) {
        tasks.push_back(&placed);
      }
    }
  }
  return tasks;
}

Rank server_of(const std::vector<const PlacedTask*>& tasks, std::int64_t q, std::int64_t k) {
  for (const PlacedTask* placed : tasks) {
    const Task& t = placed->task;
    const bool inside = t.q.begin <= q && q < t.q.end && t.k.begin <= k && k < t.k.end;
    if (inside && t.band.sees(q, k)) return placed->server;
  }
  return Picture::kNobody;
}

Picture::Picture(const Plan& plan, int document, Range heads) {
  const TokenOrder& order = plan.workload.order;
  const std::int64_t length = plan.workload.lengths[static_cast<std::size_t>(document)];
  const std::int64_t run = order.natural() ? 1 : order.run;
  const std::int64_t runs = (length + run - 1) / run;
  size_ = std::min(runs, kRows);
  tokens_ = order.natural() ? length : std::min(length, size_ * run);
  const std::vector<std::int64_t> counts = counts_of_positions(order, length, tokens_);
  const std::vector<const PlacedTask*> tasks = tasks_of(plan, document, heads);
  const auto middle = [&](std::int64_t cell) { return (2 * cell + 1) * tokens_ / (2 * size_); };
  servers_.assign(static_cast<std::size_t>(size_ * size_), kMasked);
  for (std::int64_t row = 0; row < size_; ++row) {
    for (std::int64_t column = 0; column <= row; ++column) {
      if (!plan.workload.mask.sees(middle(row), middle(column))) continue;
      const auto q = static_cast<std::size_t>(middle(row));
      const auto k = static_cast<std::size_t>(middle(column));
      servers_[static_cast<std::size_t>(row * size_ + column)] =
          server_of(tasks, counts[q], counts[k]);
    }
  }
}

/// Head ranges that the tasks of a document divide its heads into; one where they do not.
std::vector<Range> head_slices(const Plan& plan, int document) {
  std::vector<std::int64_t> edges = {0, plan.workload.shape.heads};
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      if (placed.task.document != document) continue;
      edges.push_back(placed.task.heads.begin);
      edges.push_back(placed.task.heads.end);
    }
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<Range> slices;
  for (std::size_t i = 1; i < edges.size(); ++i) slices.push_back({edges[i - 1], edges[i]});
  return slices;
}

/// At most kPanels, the longest first.
std::vector<int> longest_documents(const Plan& plan) {
  const std::vector<std::int64_t>& lengths = plan.workload.lengths;
  std::vector<int> documents(lengths.size());
  std::iota(documents.begin(), documents.end(), 0);
  std::stable_sort(documents.begin(), documents.end(), [&](int a, int b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  });
  documents.resize(std::min(kPanels, documents.size()));
  return documents;
}

}  // namespace

std::string draw(const Plan& plan, int first_document) {
  if (plan.workload.ranks > static_cast<int>(kSymbols.size())) return {};
  std::vector<std::string> lines(static_cast<std::size_t>(kRows) + 1);
  std::size_t panels = 0;
  for (const int document : longest_documents(plan)) {
    for (const Range heads : head_slices(plan, document)) {
      if (panels++ == kPanels) break;
      const Picture picture(plan, document, heads);
      const bool sliced = heads.size() < plan.workload.shape.heads;
      const std::string name =
          sliced ? fmt::format("{}, heads {}-{}", first_document + document, heads.begin,
                               heads.end - 1)
                 : fmt::format("{}: {} tokens", first_document + document, picture.tokens());
      lines[0] += fmt::format("  {:<{}}", name, kRows + 4);
      for (std::int64_t row = 0; row < kRows; ++row) {
        std::string cells;
        for (std::int64_t column = 0; row < picture.size() && column < picture.size(); ++column) {
          const Rank server = picture.server(row, column);
          cells += server == Picture::kMasked   ? '.'
                   : server == Picture::kNobody ? '-'
                                                : kSymbols[static_cast<std::size_t>(server)];
        }
        lines[static_cast<std::size_t>(row) + 1] += fmt::format("  {:<{}}", cells, kRows + 4);
      }
    }
  }
  std::string text;
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    if (!line.empty()) text += line + '\n';
  }
  return text;
}

}  // namespace cadenza::plan
