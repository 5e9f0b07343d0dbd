// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "unit/program/support.hpp"

namespace cadenza::program::test_make_program {
namespace {

using plan::Tensor;
using test::lines;
using test::outline_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Program, OfTheTrainerThatGivesATaskAway) {
  const std::vector tick_plans = {test::one_move()};
  EXPECT_THAT(lines(make_program(outline_of(2, 0, 1, 1), 0, tick_plans)),
              ElementsAre("tick 0 forward load",                           //
                          "tick 0 forward embed",                          //
                          "tick 0 layer 0 forward attention_inputs",       //
                          "tick 0 layer 0 forward post stage 1",           // inputs leave first
                          "tick 0 layer 0 forward attend stage 0",         //
                          "tick 0 layer 0 forward post_results stage 2",   //
                          "tick 0 layer 0 forward wait_results stage 2",   //
                          "tick 0 layer 0 forward attention_outputs",      //
                          "tick 0 backward loss",                          //
                          "tick 0 layer 0 backward attention_outputs",     //
                          "tick 0 layer 0 backward begin_attention",       //
                          "tick 0 layer 0 backward post stage 1",          //
                          "tick 0 layer 0 backward attend stage 0",        //
                          "tick 0 layer 0 backward post_results stage 2",  //
                          "tick 0 layer 0 backward wait_results stage 2",  //
                          "tick 0 layer 0 backward attention_inputs",      //
                          "tick 0 layer 0 backward reduce_layer",          //
                          "tick 0 backward embed_gradient",                //
                          "backward reduce_gradients",                     //
                          "backward gradient_norm",                        //
                          "backward optimize"));
}

TEST(Program, OfADedicatedServerIsAttentionAlone) {
  const std::vector tick_plans = {test::one_server()};
  EXPECT_THAT(lines(make_program(outline_of(1, 1, 1, 1), 1, tick_plans)),
              ElementsAre("tick 0 layer 0 forward post stage 0",          //
                          "tick 0 layer 0 forward wait stage 0",          //
                          "tick 0 layer 0 forward attend stage 0",        //
                          "tick 0 layer 0 forward post_results stage 1",  //
                          "tick 0 layer 0 backward post stage 0",         //
                          "tick 0 layer 0 backward wait stage 0",         //
                          "tick 0 layer 0 backward attend stage 0",       //
                          "tick 0 layer 0 backward post_results stage 1"));
}

TEST(Program, OfAnIdleDedicatedServerIsEmpty) {
  const std::vector tick_plans = {test::one_server()};
  EXPECT_THAT(make_program(outline_of(1, 2, 3, 1), 2, tick_plans).instructions, IsEmpty());
}

TEST(Program, RunsLayersBackwardAndTicksInOrder) {
  const std::vector tick_plans = {test::one_move(), test::one_move()};
  std::vector<std::tuple<int, Pass, int>> found;
  for (const Instruction& instruction :
       make_program(outline_of(2, 0, 3, 2), 0, tick_plans).instructions) {
    if (instruction.operation == Operation::attend) {
      found.emplace_back(instruction.tick, instruction.pass, instruction.layer);
    }
  }
  std::vector<std::tuple<int, Pass, int>> expected;
  for (const int tick : {0, 1}) {
    for (const int layer : {0, 1, 2}) expected.emplace_back(tick, Pass::forward, layer);
    for (const int layer : {2, 1, 0}) expected.emplace_back(tick, Pass::backward, layer);
  }
  EXPECT_EQ(found, expected);
}

/// What rank 1 of two trainers with two halves does in the forward passes of its layers, or in
/// those that are repeated before a backward pass ('s' where the gradient of attention starts);
/// capital: the second half.
std::string order_of_halves(config::Recompute recompute, bool again) {
  config::Experiment e;
  e.model.layers = 2;
  e.batch.microbatch = 8;
  e.batch.tokens = 16;
  e.parallel.data = 2;
  e.attention.overlap = config::Overlap::ping_pong;
  e.run.recompute = recompute;
  std::vector<TickPlans> tick_plans = {test::one_move(), test::one_move()};
  tick_plans[1].half = 1;
  std::string order;
  for (const Instruction& instruction : make_program(StepShape(e), 1, tick_plans).instructions) {
    using enum Operation;
    const std::map<Operation, char> letters = {
        {attention_inputs, 'i'}, {post, 'p'},         {wait, 'w'},
        {attend, 'a'},           {post_results, 'r'}, {attention_outputs, 'o'}};
    const auto found = letters.find(instruction.operation);
    char letter = found == letters.end() ? ' ' : found->second;
    if (instruction.operation == begin_attention) letter = 's';
    if (letter != 's' && (instruction.pass != Pass::forward || instruction.recompute != again)) {
      letter = ' ';
    }
    if (letter == ' ' || (letter == 's' && !again)) continue;
    order += static_cast<char>(instruction.half == 0 ? letter : std::toupper(letter));
  }
  return order;
}

TEST(Program, HalvesTakeTurns) {
  // Messages of one half are under way (p, r) while the other computes (i, a, o).
  EXPECT_EQ(order_of_halves(config::Recompute::none, false),
            "ip"
            "IP"
            "awar"
            "AWAR"
            "oip"
            "OIP"
            "awar"
            "AWAR"
            "o"
            "O");
}

/// The first half of the backward pass is the second one, which sees keys of the other.
TEST(Program, HalvesTakeTurnsInRecomputedPasses) {
  EXPECT_EQ(order_of_halves(config::Recompute::layer, true),
            "IiP"
            "p"
            "AWAR"
            "awar"
            "OS"
            "os"
            "IiP"
            "p"
            "AWAR"
            "awar"
            "OS"
            "os");
}

/// Returns how often a program writes rows at home that messages under way may send.
/// @param sets  of a layer's recomputed activations: layers l and l + sets of a chunk share one
int overwritten_rows(const Program& program, const StepShape& step_shape, int sets) {
  using enum Operation;
  // By half: the memory whose rows its messages under way send.
  std::array<std::set<std::pair<int, std::int64_t>>, 2> sent;
  std::array<std::optional<std::tuple<int, int, Pass, bool>>, 2> context;
  const bool shared = step_shape.recompute == config::Recompute::attention ||
                      step_shape.recompute == config::Recompute::layer;
  const int stage = step_shape.layout.coordinates(program.rank).pipeline;
  int faults = 0;
  for (const Instruction& s : program.instructions) {
    const auto half = static_cast<std::size_t>(s.half);
    auto in_chunk = static_cast<std::int64_t>(s.layer);
    for (int c = 0; c < s.chunk; ++c) in_chunk -= step_shape.chunk_layers(stage, c).size();
    const std::pair memory = shared ? std::pair(-1, in_chunk % sets)
                                    : std::pair(s.buffer, static_cast<std::int64_t>(s.layer));
    if (is_attention(s.operation)) {
      const std::tuple next(s.plan, s.layer, s.pass, s.recompute);
      if (context[half] != next) sent[half].clear();
      context[half] = next;
      if (s.operation == post) sent[half].insert(memory);
      continue;
    }
    for (int each = 0; each < 2; ++each) {
      if (writes_sent_rows(s, each)) sent[static_cast<std::size_t>(each)].clear();
    }
    if (s.operation != attention_inputs || s.pass == Pass::backward) continue;
    faults += sent[half].contains(memory) || (s.half == 0 && sent[1].contains(memory));
  }
  return faults;
}

TEST(Program, WritesNoRowsThatMessagesSend) {
  int planted = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomStep& step = test::random_step(seed);
    for (const Program& program : step.programs) {
      if (!step.step_shape->layout.trains(program.rank)) continue;
      EXPECT_EQ(overwritten_rows(program, *step.step_shape, step.step_shape->halves), 0);
      planted += overwritten_rows(program, *step.step_shape, 1);
    }
  }
  EXPECT_GT(planted, 10) << "one set of a layer's recomputed rows is not enough for two halves";
}

TEST(Program, WithoutTicksOnlyUpdates) {
  EXPECT_THAT(
      lines(make_program(outline_of(1, 0, 4, 0), 0, {})),
      ElementsAre("backward reduce_gradients", "backward gradient_norm", "backward optimize"));
}

TEST(Program, BuffersAreThoseThatTheScheduleNeeds) {
  const auto buffers = [](const char* schedule, int chunks, Rank rank) {
    config::Experiment e;
    e.model.layers = 8;
    e.batch.microbatch = 8;
    e.batch.tokens = 8 * 12;
    e.parallel.pipeline = 4;
    e.parallel.chunks = chunks;
    e.attention.placement = config::PlacementKind::colocated;
    const std::string word = schedule;
    e.parallel.schedule = word == "aligned" ? config::PipelineSchedule::phase_aligned
                          : chunks > 1      ? config::PipelineSchedule::interleaved
                                            : config::PipelineSchedule::one_f_one_b;
    const StepShape step_shape(e);
    const std::vector<TickPlans> tick_plans(step_shape.ticks().size());
    return make_program(step_shape, rank, tick_plans).buffers;
  };
  for (Rank stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(buffers("1f1b", 1, stage), 4 - stage);
    EXPECT_EQ(buffers("aligned", 1, stage), 2 * (4 - stage) - 1);
  }
  EXPECT_EQ(buffers("1f1b", 2, 0), 2 * 3 + 4 + 1);  // Megatron's warm-up and one more
}

TEST(Program, OfAnEvaluationIsItsForwardPasses) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomStep& training = test::random_step(seed);
    const test::RandomStep& evaluation = test::random_step(seed, true);
    for (std::size_t rank = 0; rank < training.programs.size(); ++rank) {
      // By operation, microbatch, layer, stage and half: what runs, in whatever order.
      std::map<std::tuple<Operation, int, int, int, int>, int> expected, found;
      const auto key = [](const Instruction& i) {
        return std::tuple(i.operation, i.microbatch, i.layer, i.stage, i.half);
      };
      for (const Instruction& i : training.programs[rank].instructions) {
        const bool forward = i.pass == Pass::forward && !i.recompute;
        if (forward || i.operation == Operation::loss) ++expected[key(i)];
      }
      for (const Instruction& i : evaluation.programs[rank].instructions) {
        EXPECT_EQ(i.pass, Pass::forward);
        EXPECT_FALSE(i.recompute);
        ++found[key(i)];
      }
      EXPECT_EQ(found, expected);
      EXPECT_EQ(evaluation.programs[rank].buffers, 1) << "no activations are kept";
    }
  }
}

TEST(Program, LseIsAResultForwardAndAnInputBackward) {
  for (const Tensor what : {Tensor::o, Tensor::dq, Tensor::dk, Tensor::dv}) {
    EXPECT_TRUE(is_result(what, Pass::forward));
    EXPECT_TRUE(is_result(what, Pass::backward));
  }
  for (const Tensor what : {Tensor::q, Tensor::k, Tensor::v, Tensor::dout, Tensor::delta}) {
    EXPECT_FALSE(is_result(what, Pass::forward));
    EXPECT_FALSE(is_result(what, Pass::backward));
  }
  EXPECT_TRUE(is_result(Tensor::lse, Pass::forward));
  EXPECT_FALSE(is_result(Tensor::lse, Pass::backward));
}

TEST(Program, EveryOperationHasAName) {
  std::set<std::string_view> names;
  for (int i = 0; i < kOperations; ++i) {
    const std::string_view text = name(static_cast<Operation>(i));
    EXPECT_FALSE(text.empty());
    EXPECT_TRUE(names.insert(text).second) << text;
  }
  EXPECT_EQ(name(Operation::load), "load");
  EXPECT_EQ(name(Operation::gather_parameters), "gather_parameters");
}

/// How often a rank does what, in each attention.
TEST(Program, PostsWaitsAndTasksFollowThePlan) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomStep& step = test::random_step(seed);
    for (const Program& program : step.programs) {
      using Key = std::tuple<int, Pass, bool, int, int, bool>;
      std::map<Key, std::vector<std::size_t>> posts, waits;
      std::map<Key, std::size_t> tasks;
      for (std::size_t i = 0; i < program.instructions.size(); ++i) {
        const Instruction& s = program.instructions[i];
        const bool results =
            s.operation == Operation::post_results || s.operation == Operation::wait_results;
        const Key key{s.plan, s.pass, s.recompute, s.layer, s.stage, results};
        if (s.operation == Operation::post || s.operation == Operation::post_results) {
          posts[key].push_back(i);
        }
        if (s.operation == Operation::wait || s.operation == Operation::wait_results) {
          waits[key].push_back(i);
        }
        if (s.operation == Operation::attend) tasks[key] = i;
      }
      // Whoever waits has posted before; what is only sent is not waited for.
      for (const auto& [key, at] : posts) ASSERT_EQ(at.size(), 1U);
      for (const auto& [key, at] : waits) {
        ASSERT_EQ(at.size(), 1U);
        ASSERT_EQ(posts[key].size(), 1U);
        EXPECT_LT(posts[key][0], at[0]);
        // Results have a stage more than they need: their senders may be late.
        const auto& [plan, pass, recompute, layer, stage, results] = key;
        const auto next = tasks.find({plan, pass, recompute, layer, stage + 1, false});
        if (results && next != tasks.end()) {
          EXPECT_LT(next->second, at[0]);
        }
      }
    }
  }
}

TEST(Program, TrainersRunEveryLayerOfEveryMicrobatchServersOnlyAttention) {
  using enum Operation;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomStep& step = test::random_step(seed);
    const StepShape& step_shape = *step.step_shape;
    const long units =
        static_cast<long>(step_shape.pipeline.microbatches) * step_shape.pipeline.chunks;
    for (const Program& program : step.programs) {
      std::map<std::pair<Operation, Pass>, long> count;
      long recomputed = 0;
      for (const Instruction& done : program.instructions) {
        if (done.recompute) {
          recomputed += done.operation == attention_inputs;
        } else {
          ++count[{done.operation, done.pass}];
        }
      }
      const long trains = step_shape.layout.trains(program.rank) ? 1 : 0;
      const int mine = step_shape.layers_of_rank(program.rank);
      const long layers = trains * step_shape.pipeline.microbatches * mine * step_shape.halves;
      EXPECT_EQ((count[{load, Pass::forward}]), trains * units);
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        EXPECT_EQ((count[{attention_inputs, pass}]), layers);
        EXPECT_EQ((count[{attention_outputs, pass}]), layers);
      }
      const bool recomputes = step_shape.recompute == config::Recompute::attention ||
                              step_shape.recompute == config::Recompute::layer;
      EXPECT_EQ(recomputed, recomputes ? layers : 0);
      const long sums = step_shape.shards_parameters ? step_shape.pipeline.microbatches : 1;
      EXPECT_EQ((count[{reduce_layer, Pass::backward}]), trains * mine * sums);
      EXPECT_EQ((count[{gradient_norm, Pass::backward}]), trains);
      EXPECT_EQ((count[{optimize, Pass::backward}]), trains);
      EXPECT_EQ((count[{send, Pass::forward}]), (count[{receive, Pass::backward}]));
      EXPECT_EQ((count[{receive, Pass::forward}]), (count[{send, Pass::backward}]));
    }
  }
}

TEST(Program, RanksThatShareTheAttentionOfALayerCallThePassAlike) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const test::RandomStep& step = test::random_step(seed);
    const StepShape& step_shape = *step.step_shape;
    std::map<std::size_t, std::tuple<int, int, int, Phase>> passes;  // stage, tick, layer, phase
    int serving = 0;
    for (const Program& program : step.programs) {
      const bool pooled = step_shape.layout.pools_stages();
      const int stage = pooled ? 0 : step_shape.layout.coordinates(program.rank).pipeline;
      const bool attends = std::ranges::any_of(program.instructions, [](const Instruction& s) {
        return s.operation == Operation::attend;
      });
      EXPECT_TRUE(step_shape.layout.serves(program.rank) || !attends);
      serving += step_shape.layout.serves(program.rank) && stage == 0 ? 1 : 0;
      for (const Instruction& done : program.instructions) {
        if (done.operation != Operation::attend) continue;
        const LayerPass pass{done.tick / step_shape.halves, done.layer, phase_of(done)};
        const std::size_t number = step_shape.number_of(pass, program.rank);
        ASSERT_LT(number, step_shape.layer_passes());
        const std::tuple place(stage, pass.tick, pass.layer, pass.phase);
        EXPECT_EQ(passes.emplace(number, place).first->second, place) << seed;
      }
    }
    EXPECT_EQ(step_shape.servers_of_pass(), serving) << seed;
  }
}

TEST(Program, OfParameterShardsGathersTheNextLayerWhileOneComputes) {
  config::Experiment e = test::experiment_of(2, 0, 2, 1);
  e.parallel.shard = config::Shard::parameters;
  const std::vector tick_plans = {TickPlans{}};  // attention has no tasks
  EXPECT_THAT(lines(make_program(StepShape(e), 0, tick_plans)),
              ElementsAre("forward gather_layer",  // embedding and head, for the whole step
                          "forward wait_layer",    //
                          "tick 0 layer 0 forward gather_layer",
                          "tick 0 forward load",                        //
                          "tick 0 forward embed",                       //
                          "tick 0 layer 0 forward wait_layer",          //
                          "tick 0 layer 1 forward gather_layer",        //
                          "tick 0 layer 0 forward attention_inputs",    //
                          "tick 0 layer 0 forward attention_outputs",   //
                          "tick 0 layer 1 forward wait_layer",          //
                          "tick 0 layer 1 forward attention_inputs",    //
                          "tick 0 layer 1 forward attention_outputs",   //
                          "tick 0 layer 1 backward gather_layer",       // again
                          "tick 0 backward loss",                       //
                          "tick 0 layer 1 backward wait_layer",         //
                          "tick 0 layer 0 backward gather_layer",       //
                          "tick 0 layer 1 backward attention_outputs",  //
                          "tick 0 layer 1 backward begin_attention",    //
                          "tick 0 layer 1 backward attention_inputs",   //
                          "tick 0 layer 1 backward reduce_layer",       //
                          "tick 0 layer 0 backward wait_layer",         //
                          "tick 0 layer 0 backward attention_outputs",  //
                          "tick 0 layer 0 backward begin_attention",    //
                          "tick 0 layer 0 backward attention_inputs",   //
                          "tick 0 layer 0 backward reduce_layer",       //
                          "tick 0 backward embed_gradient",             //
                          "backward reduce_gradients",                  //
                          "backward gradient_norm",                     //
                          "backward optimize"));
}

/// Every layer of every pass is gathered once and waited for before it computes, and no more than
/// two are there or on their way.
TEST(Program, OfParameterShardsHasEveryLayerInTime) {
  using enum Operation;
  using Key = std::tuple<int, bool, int>;  // tick, whether it runs backward, layer
  const auto key = [](const Instruction& s) {
    return Key(s.tick, s.recompute || s.pass == Pass::backward, s.layer);
  };
  int gathered = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomStep& step = test::random_step(seed);
    for (const Program& program : step.programs) {
      std::map<Key, std::size_t> gathers, waits, over;
      for (std::size_t i = 0; i < program.instructions.size(); ++i) {
        const Instruction& s = program.instructions[i];
        if (s.operation == attention_inputs || s.operation == attention_outputs) over[key(s)] = i;
      }
      for (std::size_t i = 0; i < program.instructions.size(); ++i) {
        const Instruction& s = program.instructions[i];
        const bool layer = s.layer >= 0;
        if (s.operation == gather_layer && layer) {
          ASSERT_TRUE(gathers.emplace(key(s), i).second) << to_string(s);
          const auto there = std::ranges::count_if(
              gathers, [&](const auto& one) { return over.at(one.first) > i; });
          EXPECT_LE(there, 2) << to_string(s);
        }
        if (s.operation == wait_layer && layer) {
          ASSERT_TRUE(waits.emplace(key(s), i).second) << to_string(s);
          ASSERT_TRUE(gathers.contains(key(s))) << to_string(s);
        }
        const bool computes = s.operation == attention_inputs || s.operation == attention_outputs;
        if (computes && step.step_shape->shards_parameters) {
          ASSERT_TRUE(waits.contains(key(s))) << to_string(s);
        }
      }
      EXPECT_EQ(gathers.size(), step.step_shape->shards_parameters ? over.size() : 0);
      EXPECT_EQ(waits.size(), gathers.size());
      gathered += static_cast<int>(gathers.size());
    }
  }
  EXPECT_GT(gathered, 1000);
}

TEST(Program, OfOtherStacksMayGatherAheadAndSumLate) {
  config::Experiment e = test::experiment_of(2, 0, 2, 2);
  e.parallel.shard = config::Shard::optimizer;
  e.cluster.software.overlaps_gathers = true;
  e.cluster.software.overlaps_gradients = false;
  const std::vector tick_plans = {TickPlans{}, TickPlans{}};
  std::vector<std::string> moves;  // of parameters and gradients, and the first of each layer pass
  for (const Instruction& s : make_program(StepShape(e), 0, tick_plans).instructions) {
    using enum Operation;
    const bool begins =
        s.operation == (s.pass == Pass::forward ? attention_inputs : attention_outputs);
    if (begins || describe(s.operation).group == Group::replicas) moves.push_back(to_string(s));
  }
  EXPECT_THAT(moves, ElementsAre("forward gather_layer",                       //
                                 "layer 0 forward gather_layer",               //
                                 "layer 1 forward gather_layer",               //
                                 "forward wait_layer",                         //
                                 "tick 0 layer 0 forward wait_layer",          //
                                 "tick 0 layer 0 forward attention_inputs",    //
                                 "tick 0 layer 1 forward wait_layer",          //
                                 "tick 0 layer 1 forward attention_inputs",    //
                                 "tick 0 layer 1 backward attention_outputs",  //
                                 "tick 0 layer 0 backward attention_outputs",  //
                                 "tick 1 layer 0 forward attention_inputs",    // all are there
                                 "tick 1 layer 1 forward attention_inputs",    //
                                 "tick 1 layer 1 backward attention_outputs",  //
                                 "tick 1 layer 0 backward attention_outputs",  //
                                 "layer 1 backward reduce_layer",              //
                                 "layer 0 backward reduce_layer",              //
                                 "backward reduce_gradients"));
}

/// An activation buffer holds one microbatch from its load to the end of its backward pass.
TEST(Program, BuffersAreNeverShared) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const test::RandomStep& step = test::random_step(seed);
    for (const Program& program : step.programs) {
      std::map<int, std::pair<int, int>> holds;  // buffer -> (microbatch, chunk)
      for (const Instruction& done : program.instructions) {
        if (done.buffer < 0) continue;
        ASSERT_LT(done.buffer, program.buffers);
        const std::pair unit(done.microbatch, done.chunk);
        if (done.operation == Operation::load) holds[done.buffer] = unit;
        EXPECT_EQ(holds[done.buffer], unit) << seed << ": " << to_string(done);
      }
    }
  }
}

}  // namespace
}  // namespace cadenza::program::test_make_program
