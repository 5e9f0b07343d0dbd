// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "cadenza/plan/predict.hpp"
#include "cadenza/plan/report.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_report {
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
  EXPECT_THAT(keys(report),
              ::testing::ElementsAre("documents", "home", "plans", "ranks", "summary"));
  const json& tick = report["plans"][1];
  EXPECT_THAT(keys(tick), ::testing::ElementsAre("half", "imbalance", "imbalance_before",
                                                 "lower_bound_seconds", "merges", "microbatch",
                                                 "order", "predicted_seconds", "stages", "tick"));
  EXPECT_EQ(tick["order"], json({{"stripes", 1}, {"run", 1}}));
  const json& stage = tick["stages"][1];
  EXPECT_THAT(keys(stage), ::testing::ElementsAre("moves", "tasks"));
  EXPECT_THAT(keys(stage["moves"][0]),
              ::testing::ElementsAre("bytes", "document", "from", "heads", "to", "tokens", "what"));
  EXPECT_THAT(keys(stage["tasks"][0]), ::testing::ElementsAre("cost", "diagonal", "document",
                                                              "heads", "k", "q", "rule", "server"));
  EXPECT_THAT(keys(tick["merges"][0]),
              ::testing::ElementsAre("contributors", "document", "heads", "owner", "tokens"));
  EXPECT_THAT(keys(report["home"][0]), ::testing::ElementsAre("document", "rank", "tokens"));
  EXPECT_THAT(keys(report["summary"]),
              ::testing::ElementsAre("bytes_sent_per_rank", "cost_per_rank", "imbalance",
                                     "imbalance_before", "key_bytes_moved", "key_bytes_needed",
                                     "lower_bound_seconds", "predicted_seconds"));
}

/// Two layers of one kind and one of another, each with plans of two halves.
TEST(Report, SumsAreThoseOfTheMeanLayer) {
  std::vector<Plan> plans = step();
  plans.insert(plans.end(),
               {cad(workload({{200}, {100}}), 16, 0.0), cad(workload({{40, 90}, {700}}), 16, 0.0)});
  const auto summary = [](const std::vector<Plan>& of, const char* key) {
    const json value = json::parse(to_json(of))["summary"][key];
    return value.is_array() ? value[0].get<double>() : value.get<double>();
  };
  for (const char* key : {"cost_per_rank", "bytes_sent_per_rank", "key_bytes_moved",
                          "lower_bound_seconds", "predicted_seconds"}) {
    const double first = summary({plans[0], plans[1]}, key);
    const double second = summary({plans[2], plans[3]}, key);
    std::vector<Plan> all = plans;
    all[0].workload.layers = all[1].workload.layers = {0, 2};
    all[2].workload.layers = all[3].workload.layers = {1};
    const double mean = (2 * first + second) / 3;
    const double rounded = std::string_view(key).find("bytes") == std::string_view::npos ? 0 : 0.5;
    EXPECT_NEAR(summary(all, key), mean, rounded + 1e-9 * mean) << key;
  }
}

/// A document of 200 tokens shared by four ranks.
json shared_by_four(config::Attention attention) {
  config::Experiment e = test::experiment(attention.placement, 4);
  e.attention = std::move(attention);
  const Plan plan = make_plan(e.attention, test::group_workload(e, {{200}}));
  return json::parse(to_json({plan}));
}

std::int64_t sent(const json& moves, int rank) {
  std::int64_t bytes = 0;
  for (const json& move : moves) bytes += move["from"] == rank ? std::int64_t{move["bytes"]} : 0;
  return bytes;
}

TEST(Report, JsonHasAllMovesThatItCounts) {
  for (const auto kind :
       {config::AttentionKind::vertical_slash, config::AttentionKind::xattention}) {
    config::Attention attention;
    attention.placement = config::PlacementKind::zigzag;
    attention.kind = kind;
    attention.sparse.block = 16;
    attention.sparse.stride = 4;
    attention.sparse.dense_below = 0;
    const json report = shared_by_four(attention);
    const json& plan = report["plans"][0];
    EXPECT_EQ(plan["index"].size(), std::size_t{kIndexRounds});
    for (int rank = 0; rank < 4; ++rank) {
      std::int64_t bytes = 0;
      for (const json& stage : plan["stages"]) bytes += sent(stage["moves"], rank);
      const std::int64_t inputs = bytes;
      for (const json& round : plan["index"]) bytes += sent(round["moves"], rank);
      EXPECT_GT(bytes, inputs);
      EXPECT_EQ(report["summary"]["bytes_sent_per_rank"][static_cast<std::size_t>(rank)], bytes);
    }
  }
}

/// Where dual chunk attention rotates a query at a place in the text for such a key.
std::int64_t dual_chunk_position(const DualChunk& of, std::int64_t query, std::int64_t key) {
  const std::int64_t chunks = query / of.stride - key / of.stride;
  if (chunks == 0) return query % of.stride;
  return chunks == 1 ? std::min(query % of.stride + of.stride, of.cap) : of.farthest;
}

TEST(Report, JsonMapsCountsOfThePlanToPositions) {
  for (const auto placement : {config::PlacementKind::zigzag, config::PlacementKind::striped,
                               config::PlacementKind::block_striped}) {
    config::Attention attention;
    attention.placement = placement;
    attention.kind = config::AttentionKind::dual_chunk;
    attention.chunk = 50;
    attention.local = 9;
    attention.block = 8;
    const json report = shared_by_four(attention);
    const json& plan = report["plans"][0];
    const TokenOrder order{plan["order"]["stripes"], plan["order"]["run"]};
    const DualChunk chunks{41, 50, 50};
    ASSERT_EQ(Mask::dual_chunk(chunks), attention.mask());
    int capped = 0;
    for (const json& stage : plan["stages"]) {
      for (const json& task : stage["tasks"]) {
        if (!task.contains("q_positions")) continue;
        std::int64_t query = task["q"][0];
        const std::int64_t key = position_of(order, 200, task["k"][0]);
        for (const json& map : task["q_positions"]) {
          capped += map.contains("cap");
          EXPECT_EQ(map["q"][0], query);
          for (const std::int64_t end = map["q"][1]; query < end; ++query) {
            const std::int64_t position =
                std::int64_t{map["first"]} + std::int64_t{map["step"]} * query;
            const std::int64_t text = position_of(order, 200, query);
            EXPECT_EQ(std::min(position, map.value("cap", position)),
                      dual_chunk_position(chunks, text, key));
          }
        }
        EXPECT_EQ(task["q"][1], query);
      }
    }
    EXPECT_GT(capped, 0);
  }
}

TEST(Report, JsonHasNoNumberForWhatHasNoEnd) {
  config::Attention attention;
  attention.placement = config::PlacementKind::block_striped;
  attention.block = 8;
  for (const auto kind : {config::AttentionKind::window, config::AttentionKind::dual_chunk}) {
    attention.kind = kind;
    attention.window = 50;
    attention.chunk = 50;
    EXPECT_THAT(shared_by_four(attention).dump(),
                ::testing::Not(::testing::ContainsRegex("[0-9]{19}")));
  }
}

TEST(Report, PredictionsAreThoseOfTheMachineThatIsNamed) {
  StepNotes notes;
  notes.predictions = {{1.0, 2.0}, {3.0, 5.0}};
  notes.rates = "machine m";
  const json summary = json::parse(to_json(step(), notes))["summary"];
  EXPECT_EQ(summary["lower_bound_seconds"], 4.0);
  EXPECT_EQ(summary["predicted_seconds"], 7.0);
  EXPECT_EQ(summary["rates"], "machine m");
  EXPECT_THAT(to_table(step(), notes),
              ::testing::HasSubstr("attention 5.0 s predicted, lower bound 3.0 s"));
  EXPECT_THAT(
      to_table(step(), notes),
      ::testing::HasSubstr("forward of one layer: 7.0 s predicted (machine m), lower bound 4.0 s"));
  EXPECT_THAT(to_table(step()),
              ::testing::HasSubstr("predicted (assumed 50 GFLOP/s, 5 GB/s: set cluster.machine)"));
}

// What an outsider would do: cover every document, add up every cost and byte.
TEST(Report, JsonSufficesToCheckCoverageAndBalance) {
  const std::vector<Plan> ticks = step();
  const json report = json::parse(to_json(ticks));
  EXPECT_EQ(report["ranks"], 2);
  const auto lengths = report["documents"].get<std::vector<std::int64_t>>();
  EXPECT_THAT(lengths, ::testing::ElementsAre(400, 3, 20, 50, 300));
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
        EXPECT_THAT(move["what"].get<std::string>(), ::testing::AnyOf("Q", "K", "V", "O", "LSE"));
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
  const cost::Pool model = cost::nominal_pool(ticks[0].workload.shape.head_dim);
  EXPECT_DOUBLE_EQ(
      summary["predicted_seconds"].get<double>(),
      predict(ticks[0], model).predicted_seconds + predict(ticks[1], model).predicted_seconds);
  EXPECT_DOUBLE_EQ(
      summary["lower_bound_seconds"].get<double>(),
      predict(ticks[0], model).lower_bound_seconds + predict(ticks[1], model).lower_bound_seconds);
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> list;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) list.push_back(line);
  return list;
}

TEST(Report, TableIsAligned) {
  const std::vector<Plan> plans = step();
  StepNotes notes;
  for (const bool memory : {false, true}) {
    if (memory) notes = {{1 << 20, 3 << 20}, {0, 0, 2, 0, 1}, {}, {}, {}, {}};
    std::vector<std::string> rows;
    const std::vector<std::string> all = lines(to_table(plans, notes));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].starts_with("rank")) continue;
      for (std::size_t row = i; row <= i + 2; ++row) rows.push_back(all[row]);
    }
    ASSERT_EQ(rows.size(), 2U * 3);
    for (const std::string& row : rows) EXPECT_EQ(row.size(), rows[0].size()) << row;
    EXPECT_EQ(rows[2].ends_with("3 MiB"), memory);
  }
  const std::string table = to_table(plans, notes);
  EXPECT_THAT(table,
              ::testing::HasSubstr("tick 1: 2 documents, 350 tokens, longest 300\nimbalance 1."));
  EXPECT_THAT(table, ::testing::HasSubstr("before balancing 1.9"));
  EXPECT_THAT(table, ::testing::HasSubstr("2 of 5 documents delayed, by up to 2 steps"));
  EXPECT_THAT(table, ::testing::HasSubstr("step: 2 ticks"));
}

TEST(Report, SaysWhichTolerancesWereTried) {
  std::vector<Plan> plans = step();
  plans[0].trials = {{0.02, 1.0}, {1, 3.0}, {0.1, 2.0}};
  const json report = json::parse(to_json(plans));
  EXPECT_EQ(report["plans"][0]["tolerance"], 0.02);
  EXPECT_EQ(report["plans"][0]["trials"][1], json({{"tolerance", 1.0}, {"layer_seconds", 3.0}}));
  EXPECT_FALSE(report["plans"][1].contains("tolerance"));
  EXPECT_THAT(to_table(plans),
              ::testing::HasSubstr("\ntolerance 0.02 (auto: a layer is predicted to "
                                   "take 1.0 s; 0.1: 2.0 s)\n"));
}

TEST(Report, JsonHasWhatIsNoted) {
  const json report =
      json::parse(to_json(step(), {{7, 8}, {0, 0, 2, 0, 1}, {{0, 2}, {1, 3}}, {}, {"why"}, {}}));
  EXPECT_EQ(report["decisions"], json({"why"}));
  EXPECT_EQ(report["summary"]["peak_bytes_per_rank"], json({7, 8}));
  EXPECT_EQ(report["delays"], json({0, 0, 2, 0, 1}));
  EXPECT_EQ(report["pools"][1], json({1, 3}));
}

TEST(Report, ImbalanceBeforeIsThatOfTheHomes) {
  const std::vector<Plan> plans = step();
  const json report = json::parse(to_json(plans));
  const auto pairs = [](double n) { return n * (n + 1) / 2; };
  const double first = pairs(400) + pairs(3);
  EXPECT_DOUBLE_EQ(report["plans"][0]["imbalance_before"].get<double>(),
                   2 * first / (first + pairs(20)));
  const double second = pairs(300) + pairs(20);
  const double one = first + pairs(50);
  EXPECT_DOUBLE_EQ(report["summary"]["imbalance_before"].get<double>(), 2 * one / (one + second));
  // Dedicated servers: the mean over the trainers.
  const Workload w = workload({{100}, {100}, {100}}, 5);
  EXPECT_EQ(imbalance_at_home(w, cost_at_home(w)), 1.0);
}

TEST(Report, HalvesShareTheirDocuments) {
  std::vector<Plan> plans;
  for (int tick = 0; tick < 2; ++tick) {
    const Workload w = workload({{400, 60}, {300}});
    for (const Workload& half : halves(w)) plans.push_back(cad(half, 16, 0.0));
  }
  const json report = json::parse(to_json(plans));
  EXPECT_EQ(report["documents"], json({400, 60, 300, 400, 60, 300}));
  EXPECT_EQ(report["home"].size(), plans[0].workload.homes.size() * 2);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(report["plans"][i]["tick"], i / 2);
    EXPECT_EQ(report["plans"][i]["half"], i % 2);
  }
  for (const json& task : report["plans"][3]["stages"][0]["tasks"]) EXPECT_GE(task["document"], 3);
  EXPECT_THAT(to_table(plans), ::testing::HasSubstr("tick 1, second half: 3 documents"));
  EXPECT_THAT(to_table(plans), ::testing::HasSubstr("step: 2 ticks"));
}

// A document of five rows of blocks, and a dense one.
TEST(Report, JsonHasTheIndexThatIsGiven) {
  const std::vector<Plan> plans = {make_plan({}, workload({{75, 10}}))};
  EXPECT_FALSE(json::parse(to_json(plans)).contains("patterns"));
  const std::vector<std::int64_t> slashes = {32, 48}, columns = {3};
  std::vector<SparsePattern> heads(4);
  heads[0] = SparsePattern::vertical_slash(75, 16, slashes, columns);
  heads[1] = SparsePattern::vertical_slash(75, 16, {}, {});
  StepNotes notes;
  notes.index = SparseIndex(2, heads);
  EXPECT_EQ(json::parse(to_json(plans, notes))["patterns"], json::parse(R"([
      {"block": 16, "columns": [3],
       "rows": [[[0, 16]], [[16, 32]], [[0, 16], [32, 48]], [[0, 32], [48, 64]],
                [[16, 48], [64, 75]]]},
      null])"));
}

TEST(Report, PicturesAreByTextPositions) {
  Workload w = workload({{64}, {}});
  w.context = 2;
  w.order = {2, 4};
  w.homes = {{0, 0, {0, 32}}, {1, 0, {32, 64}}};
  config::Attention attention;
  attention.placement = config::PlacementKind::block_striped;
  const Plan plan = make_plan(attention, w);
  const std::string table = to_table({plan});
  // Runs of four tokens alternate between the ranks; queries stay at home.
  EXPECT_THAT(table, ::testing::HasSubstr("\n  0...............\n  11..............\n  000....."));
}

TEST(Report, PicturesShowSlicesOfHeads) {
  Workload w = workload({{64}, {}});
  w.context = 2;
  w.homes = {{0, 0, {0, 32}}, {1, 0, {32, 64}}};
  config::Attention attention;
  attention.placement = config::PlacementKind::ulysses;
  const Plan plan = make_plan(attention, w);
  EXPECT_THAT(to_table({plan}), ::testing::HasSubstr("  0, heads 0-1          0, heads 2-3"));
  EXPECT_THAT(to_table({plan}), ::testing::HasSubstr("\n  0...............      1..............."));
}

TEST(Report, EmptyStep) {
  EXPECT_EQ(json::parse(to_json({}))["plans"], json::array());
  EXPECT_THAT(to_table({}), ::testing::HasSubstr("step: 0 ticks"));
  const Plan nothing = cad(workload({{}, {}}), 16, 0.0);
  EXPECT_THAT(to_table({nothing}), ::testing::HasSubstr("tick 0: 0 documents"));
}

}  // namespace
}  // namespace cadenza::plan::test_report
