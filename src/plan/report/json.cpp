// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/plan/report.hpp"
#include "plan/report/summary.hpp"

namespace cadenza::plan {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(Range range) {
  return Json::array({range.begin, range.end});
}

void add_band(Json& json, Band band) {
  if (band.has_low()) {
    json["rule"] = "band";
    json["low"] = band.low;
    if (band.has_high()) json["high"] = band.high;
    return;
  }
  json["rule"] = band.is_full() ? "full" : "causal";
  json["diagonal"] = band.is_full() ? 0 : band.high;
}

Json to_json(const Move& move, int first_document) {
  return {{"from", move.from},
          {"to", move.to},
          {"what", name(move.what)},
          {"document", first_document + move.document},
          {"tokens", to_json(move.tokens)},
          {"heads", to_json(move.heads)},
          {"bytes", move.bytes}};
}

Json moves_of(const Stage& stage, int first_document) {
  Json moves = Json::array();
  for (const Move& move : stage.moves) moves.push_back(to_json(move, first_document));
  return moves;
}

/// A task's positions by ranges of queries, as functions of the plan's counts, not of positions in
/// the text.
Json positions_of(const Workload& workload, const Task& task) {
  const PositionMap& map = task.q_positions;
  const std::int64_t length = workload.lengths[at(task.document)];
  Json ranges = Json::array();
  for (const TextRun& run : text_runs(workload.order, length, task.q)) {
    const std::int64_t step = map.step * run.step;
    const std::int64_t first = map.first + map.step * run.first - step * run.tokens.begin;
    Json& range = ranges.emplace_back();
    range = {{"q", to_json(run.tokens)}, {"first", first}, {"step", step}};
    if (map.cap != PositionMap::kNoCap) range["cap"] = map.cap;
  }
  return ranges;
}

Json to_json(const PlacedTask& placed, const Workload& workload, int first_document) {
  const Task& task = placed.task;
  Json json = {{"server", placed.server},
               {"document", first_document + task.document},
               {"q", to_json(task.q)},
               {"k", to_json(task.k)},
               {"heads", to_json(task.heads)}};
  add_band(json, task.band);
  if (task.q_positions != PositionMap{}) json["q_positions"] = positions_of(workload, task);
  json["cost"] = placed.cost;
  return json;
}

Json to_json(const Merge& merge, int first_document) {
  return {{"owner", merge.owner},
          {"document", first_document + merge.document},
          {"tokens", to_json(merge.tokens)},
          {"heads", to_json(merge.heads)},
          {"contributors", merge.contributors}};
}

/// By document: the expected shares of its pairs, in equal ranges of rows; null where it is dense.
Json density_of(const Workload& workload) {
  Json documents = Json::array();
  for (std::size_t i = 0; i < workload.density.size(); ++i) {
    Json& shares = documents.emplace_back();
    if (workload.sparse.is_dense(workload.lengths[i])) continue;
    for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
      shares.push_back(static_cast<double>(workload.density[i].share(bin)) /
                       double{SparseDensity::kUnit});
    }
  }
  return documents;
}

/// By document: the active keys of each row of blocks and the columns, of head 0; null where it is
/// dense.
Json patterns_of(const SparseIndex& index) {
  Json documents = Json::array();
  for (int i = 0; i < index.documents(); ++i) {
    Json& document = documents.emplace_back();
    const SparsePattern* pattern = index.of(i, 0);
    if (pattern == nullptr) continue;
    Json rows = Json::array();
    for (std::int64_t row = 0; row < pattern->rows(); ++row) {
      Json& keys = rows.emplace_back(Json::array());
      pattern->for_each_active(row, {0, pattern->length()},
                               [&](Range k) { keys.push_back(to_json(k)); });
    }
    const std::span<const std::int64_t> columns = pattern->columns();
    document = {{"block", pattern->block()},
                {"rows", std::move(rows)},
                {"columns", std::vector(columns.begin(), columns.end())}};
  }
  return documents;
}

Json to_json(const Plan& plan, const Place& place, const Prediction& prediction) {
  Json stages = Json::array();
  for (const Stage& stage : plan.stages) {
    Json tasks = Json::array();
    for (const PlacedTask& placed : stage.tasks) {
      tasks.push_back(to_json(placed, plan.workload, place.first_document));
    }
    stages.push_back(
        {{"moves", moves_of(stage, place.first_document)}, {"tasks", std::move(tasks)}});
  }
  Json merges = Json::array();
  for (const Merge& merge : plan.merges) merges.push_back(to_json(merge, place.first_document));
  const TokenOrder& order = plan.workload.order;
  Json json = {{"tick", place.tick},
               {"microbatch", place.tick},
               {"half", place.half},
               {"order", {{"stripes", order.stripes}, {"run", order.run}}},
               {"stages", std::move(stages)},
               {"merges", std::move(merges)},
               {"imbalance_before", imbalance_at_home(plan.workload, cost_at_home(plan.workload))},
               {"imbalance", imbalance(plan)},
               {"lower_bound_seconds", prediction.lower_bound_seconds},
               {"predicted_seconds", prediction.predicted_seconds}};
  for (const Stage& round : plan.index) {
    json["index"].push_back({{"moves", moves_of(round, place.first_document)}});
  }
  if (!plan.workload.layers.empty()) json["layers"] = plan.workload.layers;
  if (!plan.workload.density.empty()) json["density"] = density_of(plan.workload);
  if (plan.trials.empty()) return json;
  json["tolerance"] = plan.trials.front().tolerance;
  Json& trials = json["trials"] = Json::array();
  for (const Trial& trial : plan.trials) {
    trials.push_back({{"tolerance", trial.tolerance}, {"layer_seconds", trial.layer_seconds}});
  }
  return json;
}

Json to_json(const Summary& summary, const StepNotes& notes) {
  Json json = {{"cost_per_rank", summary.total.cost_per_rank},
               {"bytes_sent_per_rank", summary.total.bytes_sent_per_rank},
               {"imbalance_before", summary.imbalance_at_home},
               {"imbalance", imbalance(summary.total)},
               {"lower_bound_seconds", summary.prediction.lower_bound_seconds},
               {"predicted_seconds", summary.prediction.predicted_seconds},
               {"key_bytes_moved", summary.keys.moved},
               {"key_bytes_needed", std::llround(summary.keys.needed)}};
  if (!notes.rates.empty()) json["rates"] = notes.rates;
  if (!notes.peak_bytes_per_rank.empty()) {
    json["peak_bytes_per_rank"] = notes.peak_bytes_per_rank;
  }
  return json;
}

}  // namespace

std::string to_json(const std::vector<Plan>& plans, const StepNotes& notes) {
  Json documents = Json::array();
  Json homes = Json::array();
  Json list = Json::array();
  const std::vector<Place> where = places(plans);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    list.push_back(to_json(plans[i], where[i], prediction_of(plans, i, notes)));
    if (!where[i].first) continue;
    const Workload& workload = plans[i].workload;
    for (std::int64_t length : workload.lengths) documents.push_back(length);
    for (const Home& home : workload.homes) {
      homes.push_back({{"rank", home.rank},
                       {"document", where[i].first_document + home.document},
                       {"tokens", to_json(home.tokens)}});
    }
  }
  Json step = {{"ranks", plans.empty() ? 0 : plans.front().workload.ranks},
               {"documents", std::move(documents)},
               {"home", std::move(homes)},
               {"plans", std::move(list)},
               {"summary", to_json(summarize(plans, notes), notes)}};
  if (!plans.empty() && !plans.front().workload.capacities.empty()) {
    step["capacities"] = plans.front().workload.capacities;
  }
  if (!notes.estimate.empty()) step["estimate"] = notes.estimate;
  if (notes.index.documents() > 0) step["patterns"] = patterns_of(notes.index);
  if (!notes.decisions.empty()) step["decisions"] = notes.decisions;
  if (!notes.delays.empty()) step["delays"] = notes.delays;
  if (notes.padding > 0) step["padding"] = notes.padding;
  if (notes.pools.size() > 1) step["pools"] = notes.pools;
  return step.dump() + "\n";
}

namespace {

constexpr std::int64_t kRows = 16;  // rows of a picture in characters
constexpr std::size_t kPanels = 4;  // pictures side by side
constexpr std::string_view kSymbols = "0123456789abcdefghijklmnopqrstuvwxyz";

/// The servers of one document's attention matrix and one slice of heads, in square cells. A cell
/// shows the server of the query and key in its middle.
class Picture {
 public:
  static constexpr Rank kMasked = -1;  ///< the query does not see the key
  static constexpr Rank kNobody = -2;  ///< the plan does not compute it: queries of another half

  /// Shows a whole document; of a striped one, whose stripes are finer than cells, only the first
  /// tokens, one run per cell.
  Picture(const Plan& plan, int document, Range heads);

  std::int64_t size() const { return size_; }
  std::int64_t tokens() const { return tokens_; }  ///< tokens of the text that are shown
  Rank server(std::int64_t row, std::int64_t column) const {
    return servers_[at(row * size_ + column)];
  }

 private:
  std::int64_t size_;
  std::int64_t tokens_;
  std::vector<Rank> servers_;
};

/// The plan's counts of the tokens at text positions [0, count).
std::vector<std::int64_t> counts_of_positions(const TokenOrder& order, std::int64_t length,
                                              std::int64_t count) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(count));
  std::iota(counts.begin(), counts.end(), 0);
  if (order.natural()) return counts;
  for (std::int64_t token = 0; token < length; ++token) {
    const std::int64_t position = position_of(order, length, token);
    if (position < count) counts[at(position)] = token;
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
  const std::int64_t length = plan.workload.lengths[at(document)];
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
      servers_[at(row * size_ + column)] = server_of(tasks, counts[q], counts[k]);
    }
  }
}

/// The ranges into which the tasks of a document divide its heads.
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

/// The longest documents, at most kPanels, longest first.
std::vector<int> longest_documents(const Plan& plan) {
  const std::vector<std::int64_t>& lengths = plan.workload.lengths;
  std::vector<int> documents(lengths.size());
  std::iota(documents.begin(), documents.end(), 0);
  std::stable_sort(documents.begin(), documents.end(),
                   [&](int a, int b) { return lengths[at(a)] > lengths[at(b)]; });
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
                                                : kSymbols[at(server)];
        }
        lines[at(row) + 1] += fmt::format("  {:<{}}", cells, kRows + 4);
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
