// SPDX-License-Identifier: Apache-2.0
// Machine files, and the cluster block of experiments.
#include "cadenza/config/machine.hpp"

#include "support.hpp"

namespace cadenza::config::test_machine {
namespace {

const std::string kMachine =
    "name: small\n"                         // 1
    "source: made up\n"                     // 2
    "dtype: bfloat16\n"                     // 3
    "ranks_per_node: 8\n"                   // 4
    "attention:\n"                          // 5
    "  heads: 4\n"                          // 6
    "  kv_heads: 2\n"                       // 7
    "  forward: [[128, 128, 1e-5],\n"       // 8
    "            [128, 512, 4e-5]]\n"       // 9
    "  backward: [[128, 128, 3e-5]]\n"      // 10
    "products:\n"                           // 11
    "  table: [[256, 64, 64, 1e9],\n"       // 12
    "          [512, 64, 64, 2e9]]\n"       // 13
    "links:\n"                              // 14
    "  inside: {bytes_per_second: 1e9}\n"   // 15
    "  between: {bytes_per_second: 2e9}\n"  // 16
    "  adapters: 4\n";                      // 17

const std::string kSparse =
    "name: sparse\n"                                               // 1
    "source: made up\n"                                            // 2
    "attention:\n"                                                 // 3
    "  sparse:\n"                                                  // 4
    "    pair: 1.5\n"                                              // 5
    "    table: [[16, 3.5, 4],\n"                                  // 6
    "            [64, 1.25, 1.5]]\n"                               // 7
    "  index: {flops_per_second: 1e10, scores_per_second: 2e9,\n"  // 8
    "          masses_per_second: 3e8}\n"                          // 9
    "  flops_per_second: 1e11\n"                                   // 10
    "products: {flops_per_second: 1e11}\n"                         // 11
    "links: {inside: {bytes_per_second: 1e9}}\n";                  // 12

Machine parsed(const std::string& text) {
  return parse_machine(text, "m.yaml");
}

std::string machine_error(const std::string& from, const std::string& to,
                          std::string text = kMachine) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  try {
    parsed(text.replace(at, from.size(), to));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error with " << to;
  return "";
}

TEST(MachineFile, IsRead) {
  const Machine machine = parsed(kMachine);
  EXPECT_EQ(machine.name, "small");
  EXPECT_EQ(machine.dtype, Dtype::bfloat16);
  EXPECT_EQ(machine.ranks_per_node, 8);
  EXPECT_EQ(machine.attention.kv_heads, 2);
  EXPECT_THAT(machine.attention.forward,
              ::testing::ElementsAre(Row<3>{128, 128, 1e-5}, Row<3>{128, 512, 4e-5}));
  EXPECT_THAT(machine.products.table,
              ::testing::ElementsAre(Row<4>{256, 64, 64, 1e9}, Row<4>{512, 64, 64, 2e9}));
  EXPECT_EQ(machine.links.inside.bytes_per_second, 1e9);
  EXPECT_EQ(machine.links.between.bytes_per_second, 2e9);
  EXPECT_EQ(machine.links.between.latency_seconds, Machine{}.links.between.latency_seconds);
}

TEST(MachineFile, ReadsBackToTheSame) {
  Machine machine = parsed(kMachine);
  machine.source = "a \"quoted\" word,\nand a line";
  machine.attention.launch_seconds = 1.0 / 3;
  machine.element_wise.copies = {1e9, 0.1 + 0.2};
  machine.links.between = {1e-7, 5e10 / 3};
  const std::string yaml = to_yaml(machine);
  const Machine back = parsed(yaml);
  EXPECT_EQ(to_yaml(back), yaml);
  EXPECT_EQ(back.source, machine.source);
  EXPECT_EQ(back.attention.launch_seconds, machine.attention.launch_seconds);
  EXPECT_EQ(back.attention.forward, machine.attention.forward);
  EXPECT_EQ(back.products.table, machine.products.table);
  EXPECT_EQ(back.element_wise.copies.unpack, machine.element_wise.copies.unpack);
  EXPECT_EQ(back.links.between.bytes_per_second, machine.links.between.bytes_per_second);
}

TEST(MachineFile, WithoutRatesIsRefused) {
  const std::string sheet =
      "name: m\nsource: a data sheet\nmemory: 80000000000\n"
      "peak_flops_per_second: 9.89e+14\nranks_per_node: 8\n";
  const std::string attention = "attention.flops_per_second (or attention.forward and backward)";
  const std::string links = "links.between.bytes_per_second";
  EXPECT_THAT(machine_error("8\n", "8\n", sheet),
              ::testing::StartsWith("m.yaml:1: found no " + attention +
                                    ", no products.flops_per_second (or products.table), no "
                                    "links.inside.bytes_per_second, no " +
                                    links + ", and"));
  // One table is not enough, and a default is no more right where a file has other keys.
  EXPECT_THAT(machine_error("  backward: [[128, 128, 3e-5]]\n", ""),
              ::testing::StartsWith("m.yaml:1: found no " + attention + ", and"));
  EXPECT_THAT(machine_error("  between: {bytes_per_second: 2e9}\n", ""),
              ::testing::StartsWith("m.yaml:1: found no " + links + ", and"));
}

const std::string kSheet =
    "name: sheet\n"                              // 1
    "source: data sheet\n"                       // 2
    "ranks_per_node: 8\n"                        // 3
    "memory: 40GB\n"                             // 4
    "sheet:\n"                                   // 5
    "  flops_per_second: 3e14\n"                 // 6
    "  memory_bytes_per_second: 2.4e12\n"        // 7
    "  link_bytes_per_second: 3e11\n"            // 8
    "  network_bytes_per_second: 2.5e10\n"       // 9
    "attention: {launch_seconds: 1e-4}\n"        // 10
    "element_wise: {copies: {pack: 5e10}}\n"     // 11
    "links: {between: {latency_seconds: 0}}\n";  // 12

TEST(MachineFile, DerivesFromADataSheetWhatItLeavesOut) {
  const Machine machine = parsed(kSheet);
  EXPECT_EQ(machine.dtype, Dtype::bfloat16);
  EXPECT_EQ(parsed(std::string(kSheet) + "dtype: float32\n").dtype, Dtype::float32);
  EXPECT_EQ(machine.memory, 40'000'000'000);
  EXPECT_EQ(machine.peak_flops_per_second, 3e14);
  EXPECT_NEAR(machine.attention.flops_per_second, 0.61 * 3e14, 1);
  EXPECT_NEAR(machine.products.flops_per_second, 0.705 * 3e14, 1);
  EXPECT_NEAR(machine.element_wise.bytes_per_second, 0.8 * 2.4e12, 1);
  EXPECT_NEAR(machine.links.inside.bytes_per_second, 0.807 * 3e11, 1);
  EXPECT_EQ(machine.links.between.bytes_per_second, 2.5e10);
  // What the file says stays, the rest of its block as well.
  EXPECT_EQ(machine.attention.launch_seconds, 1e-4);
  EXPECT_EQ(machine.element_wise.copies.pack, 5e10);
  EXPECT_NEAR(machine.element_wise.copies.unpack, 1e11, 1);
  EXPECT_EQ(machine.links.between.latency_seconds, 0);
  const std::string yaml = to_yaml(machine);
  EXPECT_EQ(to_yaml(parsed(yaml)), yaml);
}

TEST(MachineFile, SaysWhatADataSheetLacks) {
  EXPECT_THAT(machine_error("  flops_per_second: 3e14\n", "", kSheet),
              ::testing::StartsWith("m.yaml:5: sheet: found no flops_per_second; valid: all"));
  EXPECT_THAT(machine_error("2.5e10", "0", kSheet),
              ::testing::HasSubstr("found no network_bytes_per_second; valid"));
}

TEST(MachineFile, ReadsSizes) {
  const auto memory = [](const std::string& size) {
    std::string text = kSheet;
    return parsed(text.replace(text.find("40GB"), 4, size)).memory;
  };
  EXPECT_EQ(memory("80GiB"), std::int64_t{80} << 30);
  EXPECT_EQ(memory("1.5TB"), 1'500'000'000'000);
  EXPECT_EQ(memory("512MiB"), std::int64_t{512} << 20);
  EXPECT_EQ(memory("17"), 17);
  for (const char* wrong :
       {"40gb", "40 GB", "GB", "-1GB", "nanGB", "infTiB", "2e9TB", "\"40GB\"", "1.5"}) {
    EXPECT_THAT(machine_error("40GB", wrong, kSheet),
                ::testing::HasSubstr("m.yaml:4: memory: found"))
        << wrong;
  }
}

TEST(MachineFile, KnowsSparseAttention) {
  const Machine machine = parsed(kSparse);
  EXPECT_EQ(machine.attention.sparse.pair, 1.5);
  EXPECT_THAT(machine.attention.sparse.table,
              ::testing::ElementsAre(Row<3>{16, 3.5, 4}, Row<3>{64, 1.25, 1.5}));
  EXPECT_EQ(machine.attention.index.flops_per_second, 1e10);
  EXPECT_EQ(machine.attention.index.scores_per_second, 2e9);
  EXPECT_EQ(machine.attention.index.masses_per_second, 3e8);
  const std::string yaml = to_yaml(machine);
  EXPECT_EQ(to_yaml(parsed(yaml)), yaml);
  EXPECT_EQ(parsed(yaml).attention.sparse.table, machine.attention.sparse.table);
}

TEST(MachineFile, SaysWhatIsWrongWithSparseAttention) {
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  const auto error = [](const std::string& from, const std::string& to) {
    return machine_error(from, to, kSparse);
  };
  EXPECT_THAT(
      error("pair: 1.5", "pair: 0"),
      StartsWith("m.yaml:5: attention.sparse.pair: found 0; valid: a number in [0.1, 1000]"));
  EXPECT_THAT(error("[64, 1.25, 1.5]", "[64.5, 1.25, 1.5]"),
              StartsWith("m.yaml:7: attention.sparse.table[1]: found a size of 64.5"));
  EXPECT_THAT(
      error("[64, 1.25, 1.5]", "[64, 1.25, 1001]"),
      StartsWith("m.yaml:7: attention.sparse.table[1]: found 1001 times a dense pair; valid: "
                 "a number in [0.1, 1000]"));
  EXPECT_THAT(error("[64, 1.25, 1.5]", "[64, 0.01, 1]"), HasSubstr("found 0.01 times"));
  EXPECT_THAT(error("[64, 1.25, 1.5]", "[16, 1.25, 1.5]"),
              StartsWith("m.yaml:7: attention.sparse.table[1]: found blocks of 16 a second time"));
  EXPECT_THAT(error("[64, 1.25, 1.5]", "[64, 1.25]"), HasSubstr("found a row of 2"));
  EXPECT_THAT(error("    pair: 1.5\n", "    adjoining: [[64, 1, 1], [64, 1, 2]]\n"),
              StartsWith("m.yaml:5: attention.sparse.adjoining[1]: found blocks of 64 a second"));
  EXPECT_THAT(error("1e10", "0"),
              StartsWith("m.yaml:8: attention.index.flops_per_second: found 0"));
  EXPECT_THAT(error("scores_per", "score_per"), HasSubstr("nearest is 'scores_per_second'"));
  EXPECT_THAT(error("3e8", "quick"),
              StartsWith("m.yaml:9: attention.index.masses_per_second: found"));
}

TEST(MachineFile, SaysWhatIsWrong) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  EXPECT_THAT(machine_error("dtype: bfloat16", "dtype: bfloat"),
              AllOf(StartsWith("m.yaml:3: dtype: found bfloat"), HasSubstr("float64")));
  EXPECT_THAT(machine_error("products:", "product:"),
              AllOf(StartsWith("m.yaml:11: product:"), HasSubstr("nearest is 'products'")));
  EXPECT_THAT(machine_error("source: made up\n", ""), HasSubstr("source: found nothing"));
  EXPECT_THAT(machine_error("[128, 512, 4e-5]", "[128, 512]"),
              AllOf(StartsWith("m.yaml:9: attention.forward[1]: found a row of 2"),
                    HasSubstr("a row of 3 numbers, each a number in (0, 1e+18]")));
  EXPECT_THAT(machine_error("[[128, 128, 3e-5]]", "[128, 128, 3e-5]"),
              StartsWith("m.yaml:10: attention.backward[0]: found 128; valid: a row of 3 numbers"));
  EXPECT_THAT(machine_error("[[128, 128, 3e-5]]", "fast"),
              StartsWith("m.yaml:10: attention.backward: found fast; valid: a list of rows of 3"));
  EXPECT_THAT(
      machine_error("4e-5", "-4e-5"),
      StartsWith("m.yaml:9: attention.forward[1][2]: found -4e-5; valid: a number in (0, 1e+18]"));
  EXPECT_THAT(machine_error("[512, 64, 64, 2e9]", "[512, 64, 64, quick]"),
              StartsWith("m.yaml:13: products.table[1][3]: found quick"));
}

TEST(MachineFile, RefusesNumbersThatDoNotFitEachOther) {
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  EXPECT_THAT(machine_error("[128, 512, 4e-5]", "[512, 128, 4e-5]"),
              StartsWith("m.yaml:9: attention.forward[1]: found 512 queries of a document of 128"));
  EXPECT_THAT(machine_error("[128, 512, 4e-5]", "[128, 128, 4e-5]"),
              HasSubstr("found 128 queries x 128 keys a second time"));
  EXPECT_THAT(machine_error("[512, 64, 64, 2e9]", "[256, 64, 64, 2e9]"),
              StartsWith("m.yaml:13: products.table[1]: found 256 x 64 x 64 a second time"));
  EXPECT_THAT(machine_error("kv_heads: 2", "kv_heads: 3"),
              StartsWith("m.yaml:7: attention.kv_heads: found 3, which does not divide"));
  EXPECT_THAT(machine_error("adapters: 4", "adapters: 3"),
              StartsWith("m.yaml:17: links.adapters: found 3, which does not divide"));
}

TEST(Cluster, IsRead) {
  const Experiment e =
      parse(kGood, {"parallel.data=4", "cluster.machine=m.yaml", "cluster.jitter=0.1",
                    "cluster.slow_ranks=[[3, 0.5]]", "cluster.slow_links=[[0, 1, 0.25]]"});
  EXPECT_EQ(e.cluster.machine, "m.yaml");
  EXPECT_TRUE(e.cluster.varies());
  EXPECT_EQ(e.cluster.slow_ranks.front()[1], 0.5);
  EXPECT_EQ(e.cluster.slow_links.front()[2], 0.25);
  EXPECT_FALSE(parse(kGood).cluster.varies());
}

TEST(Cluster, FaultsAreRead) {
  const Experiment e = parse(kGood, {"parallel.data=4",
                                     "cluster.faults=[{rank: 3, speed: 0.5, phase: backward, work: "
                                     "attention, steps: [1, 2]}, {rank: 0, pause: 2.5}, {rank: 1, "
                                     "core: 0.25, between: 0.5, steps: [0]}, "
                                     "{rank: 2, clock: -3}]"});
  ASSERT_EQ(e.cluster.faults.size(), 4u);
  EXPECT_EQ(e.cluster.faults[0], (Fault{.rank = 3,
                                        .speed = 0.5,
                                        .phase = FaultPhase::backward,
                                        .work = FaultWork::attention,
                                        .steps = {1, 2}}));
  EXPECT_EQ(e.cluster.faults[1], (Fault{.rank = 0, .pause = 2.5, .steps = {}}));
  EXPECT_EQ(e.cluster.faults[2], (Fault{.rank = 1, .core = 0.25, .between = 0.5, .steps = {0}}));
  EXPECT_EQ(e.cluster.faults[3], (Fault{.rank = 2, .clock = -3, .steps = {}}));
  EXPECT_TRUE(e.cluster.varies());
}

TEST(Cluster, SaysWhatIsWrongWithFaults) {
  using ::testing::HasSubstr;
  const auto error = [](const std::string& faults) {
    return error_of(kGood, {"cluster.faults=" + faults});
  };
  EXPECT_THAT(error("3"), HasSubstr("found 3; valid: a list of blocks"));
  EXPECT_THAT(error("[3]"), HasSubstr("cluster.faults[0]: found 3; valid: a block of keys"));
  EXPECT_THAT(error("[{speed: 0.5}]"), HasSubstr("cluster.faults[0].rank: found nothing"));
  EXPECT_THAT(error("[{rank: 1, speed: 0.5}]"),
              HasSubstr("found rank 1; valid: an integer in [0, "));
  EXPECT_THAT(error("[{rank: -1, speed: 0.5}]"), HasSubstr("faults[0].rank: found -1"));
  EXPECT_THAT(error("[{rank: 0, speed: 0}]"), HasSubstr("found 0; valid: a number in (0, 1]"));
  EXPECT_THAT(error("[{rank: 0, pause: -1}]"), HasSubstr("faults[0].pause: found -1"));
  EXPECT_THAT(error("[{rank: 0, speed: 0.5, phase: forwards}]"), HasSubstr("nearest is 'forward'"));
  EXPECT_THAT(error("[{rank: 0, speed: 0.5, work: mlp}]"), HasSubstr("all, attention, dense"));
  EXPECT_THAT(error("[{rank: 0, speed: 0.5, steps: [-1]}]"),
              HasSubstr("faults[0].steps[0]: found -1"));
  EXPECT_THAT(error("[{rank: 0, sped: 0.5}]"), HasSubstr("nearest is 'speed'"));
  EXPECT_THAT(error("[{rank: 0}]"), HasSubstr("a fault of rank 0 that changes nothing"));
  EXPECT_THAT(error("[{rank: 0, core: 1, between: 0, clock: 0}]"), HasSubstr("changes nothing"));
  EXPECT_THAT(error("[{rank: 0, core: 0}]"), HasSubstr("found 0; valid: a number in (0, 1]"));
  EXPECT_THAT(error("[{rank: 0, between: -1}]"), HasSubstr("faults[0].between: found -1"));
  EXPECT_THAT(error("[{rank: 0, clock: 1e7}]"), HasSubstr("faults[0].clock: found 1e7"));
  EXPECT_THAT(error("[{rank: 0, clock: 1, steps: [1]}]"), HasSubstr("with clock and steps"));
  EXPECT_THAT(error("[{rank: 0, between: 1, phase: forward}]"),
              HasSubstr("with phase or work, but without speed, pause and core"));
}

TEST(Cluster, SlowAdaptersAreOfNodes) {
  using ::testing::HasSubstr;
  const auto with = [](const std::string& rows, const std::string& each) {
    return std::vector<std::string>{"parallel.data=5", "batch.tokens=5120",
                                    "cluster.ranks_per_node=" + each,
                                    "cluster.slow_adapters=" + rows};
  };
  const Experiment e = parse(kGood, with("[[2, 0.25, 1]]", "2"));
  EXPECT_EQ(e.cluster.slow_adapters.front(), (std::array{2.0, 0.25, 1.0}));
  EXPECT_TRUE(e.cluster.varies());
  EXPECT_THAT(error_of(kGood, with("[[3, 0.25, 1]]", "2")),
              HasSubstr("found node 3; valid: an integer in [0, 3)"));
  EXPECT_THAT(error_of(kGood, with("[[0.5, 0.25, 1]]", "2")), HasSubstr("found node 0.5"));
  EXPECT_THAT(error_of(kGood, with("[[0, 0.25, 2]]", "2")), HasSubstr("a share of 2"));
  EXPECT_THAT(error_of(kGood, with("[[0, 0, 1]]", "2")), HasSubstr("a share of 0"));
  EXPECT_THAT(error_of(kGood, with("[[0, 1, 1]]", "2")), HasSubstr("changes nothing"));
  EXPECT_THAT(error_of(kGood, with("[[0, 0.5]]", "2")), HasSubstr("found a row of 2"));
  for (const std::string each : {"0", "5"}) {
    EXPECT_THAT(error_of(kGood, with("[[0, 0.5, 1]]", each)),
                HasSubstr("ranks_per_node = " + each + " and 5 ranks; valid: two nodes"));
  }
}

TEST(Cluster, SaysWhatIsWrong) {
  using ::testing::HasSubstr;
  EXPECT_THAT(error_of(kGood, {"cluster.slow_ranks=[[1, 0.5]]"}), HasSubstr("found rank 1"));
  EXPECT_THAT(error_of(kGood, {"cluster.slow_ranks=[[0.5, 0.5]]"}), HasSubstr("found rank 0.5"));
  EXPECT_THAT(error_of(kGood, {"cluster.slow_ranks=[[0, 1.5]]"}), HasSubstr("a share of 1.5"));
  EXPECT_THAT(error_of(kGood, {"cluster.slow_ranks=[[0, 0]]"}), HasSubstr("a share of 0"));
  EXPECT_THAT(error_of(kGood, {"cluster.slow_ranks=[[0, 0.5, 1]]"}), HasSubstr("found a row of 3"));
  EXPECT_THAT(error_of(kGood, {"cluster.slow_links=[[0, 0, 0.5]]"}), HasSubstr("to itself"));
  EXPECT_THAT(error_of(kGood, {"cluster.jitter=-1"}), HasSubstr("a number in [0, 10]"));
  EXPECT_THAT(error_of(kGood, {"cluster.jiter=2"}), HasSubstr("nearest is 'jitter'"));
}

}  // namespace
}  // namespace cadenza::config::test_machine
