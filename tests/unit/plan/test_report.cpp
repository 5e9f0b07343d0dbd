// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cadenza/plan/cost.hpp"
#include "cadenza/plan/report.hpp"
#include "cases.hpp"

namespace cadenza::plan {
namespace {

using nlohmann::json;
using test::workload;

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) names.push_back(key);
  return names;  // nlohmann::json sorts them
}

std::vector<Plan> step() {
  return {cad(workload({{400, 3}, {20}}), 16, 0.0), cad(workload({{50}, {300}}), 16, 0.0)};
}

TEST(Report, JsonHasExactlyTheContractsKeys) {
  const json report = json::parse(to_json(step()));
  EXPECT_THAT(keys(report), testing::ElementsAre("documents", "home", "plans", "ranks", "summary"));
  const json& tick = report["plans"][1];
  EXPECT_THAT(keys(tick), testing::ElementsAre("merges", "microbatch", "stages", "tick"));
  const json& stage = tick["stages"][1];
  EXPECT_THAT(keys(stage), testing::ElementsAre("moves", "tasks"));
  EXPECT_THAT(keys(stage["moves"][0]),
              testing::ElementsAre("bytes", "document", "from", "heads", "to", "tokens", "what"));
  EXPECT_THAT(keys(stage["tasks"][0]),
              testing::ElementsAre("cost", "document", "heads", "k", "q", "rule", "server"));
  EXPECT_THAT(keys(tick["merges"][0]),
              testing::ElementsAre("contributors", "document", "heads", "owner", "tokens"));
  EXPECT_THAT(keys(report["home"][0]), testing::ElementsAre("document", "rank", "tokens"));
  EXPECT_THAT(keys(report["summary"]),
              testing::ElementsAre("bytes_sent_per_rank", "cost_per_rank", "imbalance",
                                   "lower_bound_seconds", "predicted_seconds"));
}

// What an outsider would do: cover every document, add up every cost and byte.
TEST(Report, JsonSufficesToCheckCoverageAndBalance) {
  const std::vector<Plan> ticks = step();
  const json report = json::parse(to_json(ticks));
  EXPECT_EQ(report["ranks"], 2);
  const auto lengths = report["documents"].get<std::vector<std::int64_t>>();
  EXPECT_THAT(lengths, testing::ElementsAre(400, 3, 20, 50, 300));
  EXPECT_EQ(report["home"][4], json({{"rank", 1}, {"document", 4}, {"tokens", {0, 300}}}));
  std::vector<double> pairs(lengths.size(), 0);
  std::vector<double> cost(2, 0);
  std::vector<std::int64_t> bytes(2, 0);
  for (const json& plan : report["plans"]) {
    EXPECT_EQ(plan["tick"], plan["microbatch"]);
    for (const json& stage : plan["stages"]) {
      for (const json& task : stage["tasks"]) {
        EXPECT_EQ(task["rule"], "causal");
        EXPECT_EQ(task["heads"], json({0, 4}));
        const auto begin = task["q"][0].get<double>();
        const auto end = task["q"][1].get<double>();
        pairs[task["document"].get<std::size_t>()] += end * (end + 1) / 2 - begin * (begin + 1) / 2;
        cost[task["server"].get<std::size_t>()] += task["cost"].get<double>();
      }
      for (const json& move : stage["moves"]) {
        EXPECT_THAT(move["what"].get<std::string>(), testing::AnyOf("Q", "K", "V", "O", "LSE"));
        bytes[move["from"].get<std::size_t>()] += move["bytes"].get<std::int64_t>();
      }
    }
  }
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    const auto length = static_cast<double>(lengths[d]);
    EXPECT_EQ(pairs[d], length * (length + 1) / 2);
  }
  const json& summary = report["summary"];
  EXPECT_EQ(summary["cost_per_rank"], json(cost));
  EXPECT_EQ(summary["bytes_sent_per_rank"], json(bytes));
  EXPECT_DOUBLE_EQ(summary["imbalance"].get<double>(),
                   2 * std::max(cost[0], cost[1]) / (cost[0] + cost[1]));
  const CostModel model;
  EXPECT_DOUBLE_EQ(
      summary["predicted_seconds"].get<double>(),
      predict(ticks[0], model).predicted_seconds + predict(ticks[1], model).predicted_seconds);
  EXPECT_DOUBLE_EQ(
      summary["lower_bound_seconds"].get<double>(),
      predict(ticks[0], model).lower_bound_seconds + predict(ticks[1], model).lower_bound_seconds);
}

TEST(Report, TableIsAligned) {
  const std::string table = to_table(step());
  std::size_t width = 0;
  int rows = 0;
  std::size_t begin = 0;
  for (std::size_t end = table.find('\n'); end != std::string::npos;
       end = table.find('\n', begin)) {
    const std::string line = table.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.starts_with("tick") || line.starts_with("step")) continue;
    if (width == 0) width = line.size();
    EXPECT_EQ(line.size(), width) << line;
    ++rows;
  }
  EXPECT_EQ(rows, 2 * 3);
  EXPECT_THAT(table, testing::HasSubstr("tick 1: 2 documents, 350 tokens, longest 300, imbalance"));
  EXPECT_THAT(table, testing::HasSubstr("step: 2 ticks"));
}

TEST(Report, EmptyStep) {
  EXPECT_EQ(json::parse(to_json({}))["plans"], json::array());
  EXPECT_THAT(to_table({}), testing::HasSubstr("step: 0 ticks"));
}

}  // namespace
}  // namespace cadenza::plan
