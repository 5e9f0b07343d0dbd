// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>
#include <map>
#include <tuple>

#include "cadenza/base/units.hpp"
#include "cadenza/plan/report.hpp"
#include "summary.hpp"

namespace cadenza::plan {
namespace {

constexpr std::size_t kTasks = 6;  // named in a node

std::string node(std::size_t plan, std::size_t stage, Rank rank) {
  return fmt::format("p{}s{}r{}", plan, stage, rank);
}

std::string label(const Task& task, int first_document) {
  return fmt::format("{}: q {}-{}, k {}-{}", first_document + task.document, task.q.begin,
                     task.q.end, task.k.begin, task.k.end);
}

/// The tasks of every rank in a stage; ranks without any have a node all the same.
void write_nodes(std::string& text, const Plan& plan, std::size_t number, std::size_t stage,
                 int first_document) {
  std::vector<std::string> names(static_cast<std::size_t>(plan.workload.ranks));
  std::vector<std::size_t> count(names.size(), 0);
  std::vector<double> cost(names.size(), 0);
  for (const PlacedTask& placed : plan.stages[stage].tasks) {
    const auto server = static_cast<std::size_t>(placed.server);
    cost[server] += placed.cost;
    if (count[server]++ < kTasks) names[server] += label(placed.task, first_document) + "\\l";
  }
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    const std::string more =
        count[rank] > kTasks ? fmt::format("and {} more\\l", count[rank] - kTasks) : "";
    const std::string flops =
        count[rank] > 0 ? fmt::format("{} FLOPs\\n", format_count(cost[rank])) : "";
    fmt::format_to(std::back_inserter(text), "    {} [label=\"rank {}\\n{}{}{}\"{}];\n",
                   node(number, stage, static_cast<Rank>(rank)), rank, flops, names[rank], more,
                   count[rank] > 0 ? "" : ", style=dashed");
  }
}

/// What arrives in a stage comes from its sender's node of the stage before.
void write_edges(std::string& text, const Plan& plan, std::size_t number, std::size_t stage) {
  auto out = std::back_inserter(text);
  std::map<std::tuple<Rank, Rank>, std::map<Tensor, std::int64_t>> bytes;
  for (const Move& move : plan.stages[stage].moves) {
    bytes[{move.from, move.to}][move.what] += move.bytes;
  }
  for (const auto& [ends, tensors] : bytes) {
    std::string what;
    for (const auto& [tensor, size] : tensors) {
      what += fmt::format("{}{} {}", what.empty() ? "" : "\\n", name(tensor),
                          format_bytes(static_cast<double>(size)));
    }
    fmt::format_to(out, "  {} -> {} [label=\"{}\"];\n", node(number, stage - 1, std::get<0>(ends)),
                   node(number, stage, std::get<1>(ends)), what);
  }
  for (Rank rank = 0; rank < plan.workload.ranks; ++rank) {
    fmt::format_to(out, "  {} -> {} [style=dotted, arrowhead=none];\n",
                   node(number, stage - 1, rank), node(number, stage, rank));
  }
}

}  // namespace

std::string to_dot(const std::vector<Plan>& plans) {
  std::string text = "digraph plan {\n  rankdir=LR;\n  node [shape=box, fontname=monospace];\n";
  auto out = std::back_inserter(text);
  const std::vector<Place> where = places(plans);
  for (std::size_t number = 0; number < plans.size(); ++number) {
    const Plan& plan = plans[number];
    const Place& place = where[number];
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      fmt::format_to(out, "  subgraph cluster_p{}s{} {{\n    label=\"tick {}{}{}, stage {}\";\n",
                     number, stage, place.tick, describe_layers(plan.workload),
                     place.half == 0 ? "" : ", second half", stage);
      write_nodes(text, plan, number, stage, place.first_document);
      text += "  }\n";
      if (stage > 0) write_edges(text, plan, number, stage);
    }
  }
  return text + "}\n";
}

}  // namespace cadenza::plan
