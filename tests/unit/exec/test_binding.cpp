// SPDX-License-Identifier: Apache-2.0
// Bindings of random steps: what one rank sends is what the other expects, every task finds its
// rows, and memory that is shared over time never holds two things at once.
#include <gmock/gmock.h>

#include <array>
#include <map>

#include "cadenza/exec/memory/binding.hpp"
#include "cadenza/plan/validate.hpp"
#include "unit/exec/random_experiment.hpp"

namespace cadenza::exec {
namespace {

using plan::Tensor;
using program::Operation;
using program::Pass;
using testing::Draw;

/// The plans of a random step, their bindings and the programs that use them.
struct Bound {
  explicit Bound(std::uint64_t seed) {
    Draw draw(seed);
    const auto& placements = testing::all_placements();
    experiment = testing::random_experiment(draw, static_cast<int>(draw.between(2, 8)),
                                            placements[seed % placements.size()]);
    // Of wide heads, most rows travel in place: no rows are made here.
    if (draw.between(0, 1) == 1) {
      experiment.model.d_model *= 64;
      experiment.model.own_head_dim *= 64;
    }
    const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
    tick_plans = program::plan_ticks(experiment, data::Packer(*corpus, experiment).batch(0));
    const program::Layout layout(experiment);
    align = layout.tensor();
    for (const program::TickPlans& tick : tick_plans) {
      std::vector<Binding>& ranks = bindings.emplace_back();
      for (Rank rank = 0; rank < layout.pool_size(); ++rank) {
        ranks.push_back(bind(tick, rank, align));
      }
    }
  }
  /// Calls each(tick, rank, its binding).
  template <typename Each>
  void for_each(Each each) const {
    for (std::size_t tick = 0; tick < tick_plans.size(); ++tick) {
      for (std::size_t rank = 0; rank < bindings[tick].size(); ++rank) {
        each(tick_plans[tick], static_cast<Rank>(rank), bindings[tick][rank]);
      }
    }
  }
  config::Experiment experiment;
  std::vector<program::TickPlans> tick_plans;
  std::vector<std::vector<Binding>> bindings;  ///< by tick and rank of the pool
  int align = 1;
};

/// By peer: bytes, and of every tensor the number of head rows.
using Contents = std::map<Rank, std::map<Tensor, std::int64_t>>;

Contents contents(const MessageSet& messages) {
  Contents found;
  const auto add = [&](Rank peer, const Segment& segment) {
    found[peer][segment.what] += segment.rows * segment.heads.size();
  };
  for (const MessagePart& part : messages.parts) {
    if (part.in_place >= 0) add(part.peer, messages.in_place[at(part.in_place)]);
    for (const Segment& segment : messages.segments) {
      if (part.in_place >= 0 || segment.offset < part.offset ||
          segment.offset >= part.offset + part.bytes)
        continue;
      add(part.peer, segment);
    }
  }
  return found;
}

constexpr std::uint64_t kSteps = 40;

TEST(Binding, BothEndsOfEveryMessageAgree) {
  for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
    const Bound step(seed);
    for (std::size_t tick = 0; tick < step.tick_plans.size(); ++tick) {
      const auto& ranks = step.bindings[tick];
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        std::int64_t carried = 0;
        for (std::size_t stage = 0; stage < ranks.front().of(pass).size(); ++stage) {
          for (const auto direction : {&StageBinding::inputs, &StageBinding::results}) {
            std::map<std::pair<Rank, Rank>, std::map<Tensor, std::int64_t>> sent, received;
            for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
              const Direction& own = ranks[rank].of(pass)[stage].*direction;
              const auto self = static_cast<Rank>(rank);
              for (const auto& [to, rows] : contents(own.sends)) sent[{self, to}] = rows;
              for (const auto& [from, rows] : contents(own.receives)) received[{from, self}] = rows;
              for (const MessagePart& part : own.sends.parts) carried += part.bytes;
            }
            EXPECT_EQ(sent, received);
          }
        }
        std::int64_t planned = 0;
        for (const std::int64_t bytes : step.tick_plans[tick].of(pass).bytes_sent_per_rank) {
          planned += bytes;
        }
        EXPECT_EQ(carried, planned);
      }
    }
  }
}

TEST(Binding, EveryTaskIsBoundOnceToRowsThatHoldIt) {
  for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
    const Bound step(seed);
    step.for_each([&](const program::TickPlans& tick, Rank rank, const Binding& binding) {
      const int group = tick.forward.workload.shape.group();
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        for (std::size_t s = 0; s < binding.of(pass).size(); ++s) {
          std::int64_t planned = 0;
          for (const plan::PlacedTask& placed : tick.of(pass).stages[s].tasks) {
            const Task& t = placed.task;
            if (placed.server != rank) continue;
            planned += allowed_pairs(t) * t.heads.size();
          }
          const StageBinding& stage = binding.of(pass)[s];
          std::int64_t bound = 0;
          for (const TaskRows& rows : stage.tasks) {
            const Task& t = rows.task;
            const RowPiece& queries = stage.queries[static_cast<std::size_t>(rows.query_rows)];
            const RowPiece& keys = stage.keys[static_cast<std::size_t>(rows.key_rows)];
            EXPECT_EQ(queries.document, t.document);
            EXPECT_EQ(keys.document, t.document);
            EXPECT_TRUE(queries.tokens.contains(t.q) && queries.heads.contains(t.heads));
            EXPECT_TRUE(keys.tokens.contains(t.k));
            EXPECT_LE(keys.heads.begin, t.heads.begin / group);
            EXPECT_GE(keys.heads.end * group, t.heads.end);
            bound += allowed_pairs(t) * t.heads.size();
          }
          EXPECT_EQ(bound, planned);
        }
      }
    });
  }
}

/// Ranges of memory that must not meet.
void expect_disjoint(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.empty(); });
  std::ranges::sort(ranges, {}, &Range::begin);
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].end, ranges[i].begin);
}

TEST(Binding, BuffersThatTasksReadTogetherLieApartAndInTheirMemory) {
  for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
    const Bound step(seed);
    step.for_each([&](const program::TickPlans&, Rank, const Binding& binding) {
      const auto check = [&](const std::vector<RowPiece>& pieces, std::int64_t rows) {
        std::vector<Range> home, workspace;
        for (const RowPiece& piece : pieces) {
          const Range place{piece.row, piece.row + piece.tokens.size() * piece.heads.size()};
          EXPECT_EQ(piece.home, piece.arrives < 0);
          EXPECT_LE(place.end, piece.home ? binding.home.rows() * piece.heads.size() : rows);
          (piece.home ? home : workspace).push_back(place);
        }
        expect_disjoint(home);
        expect_disjoint(workspace);
      };
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        for (const StageBinding& stage : binding.of(pass)) {
          check(stage.queries, binding.query_rows);
          check(stage.keys, binding.key_rows);
          EXPECT_EQ(stage.positions.size(), stage.queries.size());
        }
      }
    });
  }
}

/// What of the message memory and of the workspace's rows is in use, as a rank's program has it.
class MessageMemory {
 public:
  explicit MessageMemory(std::int64_t size) : size_(size) {}
  void post(int channel, const Direction& direction) {
    for (const MessageSet* messages : {&direction.sends, &direction.receives}) {
      const Range place{messages->buffer, messages->buffer + messages->bytes};
      EXPECT_LE(place.end, size_);
      live_.emplace(channel, place);
    }
    std::vector<Range> all;
    for (const auto& [of, place] : live_) all.push_back(place);
    expect_disjoint(all);
    add(channel, direction.sends, sent_);
    add(channel, direction.receives, received_);
    for (const auto& [of, rows] : received_) {
      expect_apart(rows, sent_);
      expect_apart(rows, received_, &rows);
    }
  }
  void wait(int channel) {
    live_.erase(channel);
    sent_.erase(channel);
    received_.erase(channel);
  }
  /// Tasks neither read nor write what arrives meanwhile.
  void attend(const StageBinding& stage) const {
    for (const bool keys : {false, true}) {
      for (const RowPiece& piece : keys ? stage.keys : stage.queries) {
        if (piece.home) continue;
        const std::int64_t count = piece.tokens.size() * piece.heads.size();
        const Tensor what = keys ? Tensor::k : Tensor::q;
        expect_apart({what, {piece.row, piece.row + count}}, received_);
      }
    }
  }
  std::size_t seen() const { return seen_; }

 private:
  struct Rows {
    Tensor what;
    Range place;
  };
  using Live = std::multimap<int, Rows>;

  void add(int channel, const MessageSet& messages, Live& live) {
    for (const Segment& segment : messages.in_place) {
      EXPECT_EQ(segment.heads.size(), segment.row_heads);
      const std::int64_t count = segment.rows * segment.row_heads;
      if (segment.home) continue;
      live.insert({channel, {segment.what, {segment.row, segment.row + count}}});
      ++seen_;
    }
  }
  /// K and V, Q and dO have the same rows, of arrays of their own.
  static void expect_apart(const Rows& rows, const Live& others, const Rows* self = nullptr) {
    for (const auto& [of, other] : others) {
      if (&other == self || plan::is_key_side(other.what) != plan::is_key_side(rows.what)) continue;
      if (self != nullptr && other.what != rows.what) continue;
      EXPECT_FALSE(rows.place.overlaps(other.place));
    }
  }

  std::int64_t size_;
  std::multimap<int, Range> live_;
  Live sent_, received_;
  std::size_t seen_ = 0;
};

/// Runs the attention operations of a rank's program against its message memory: one for each layer
/// and pass, as whatever comes next first completes them.
/// @return number of rows in the workspace that travelled in place
std::size_t expect_messages_apart(const Bound& step, Rank world_rank) {
  const program::StepShape step_shape(step.experiment);
  const Rank rank = step_shape.layout.in_pool(world_rank);
  std::map<std::tuple<int, int, int, bool>, MessageMemory> memories;
  const program::Program program = program::make_program(step_shape, world_rank, step.tick_plans);
  for (const program::Instruction& done : program.instructions) {
    const bool results =
        done.operation == Operation::post_results || done.operation == Operation::wait_results;
    const bool posts =
        done.operation == Operation::post || done.operation == Operation::post_results;
    const bool attends = done.operation == Operation::attend;
    if (!results && !posts && !attends && done.operation != Operation::wait) continue;
    const Binding& binding =
        step.bindings[static_cast<std::size_t>(done.plan)][static_cast<std::size_t>(rank)];
    const StageBinding& stage = binding.of(done.pass)[static_cast<std::size_t>(done.stage)];
    const std::tuple place(done.plan, done.layer, static_cast<int>(done.pass), done.recompute);
    auto& memory = memories.try_emplace(place, binding.message_bytes).first->second;
    const int channel = 2 * done.stage + (results ? 1 : 0);
    if (attends) {
      memory.attend(stage);
      continue;
    }
    posts ? memory.post(channel, results ? stage.results : stage.inputs) : memory.wait(channel);
  }
  std::size_t seen = 0;
  for (const auto& [place, memory] : memories) seen += memory.seen();
  return seen;
}

TEST(Binding, MessagesUnderWayAtTheSameTimeLieApart) {
  std::size_t in_place = 0;
  for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
    const Bound step(seed);
    for (Rank rank = 0; rank < static_cast<Rank>(step.experiment.ranks()); ++rank) {
      in_place += expect_messages_apart(step, rank);
    }
  }
  EXPECT_GT(in_place, 1000u);
}

/// What the simulator takes for copies is what is copied.
TEST(Binding, CopiesWhatTheTrafficCounts) {
  for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
    const Bound step(seed);
    step.for_each([&](const program::TickPlans& tick, Rank rank, const Binding& binding) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const program::Traffic& traffic = tick.traffic(pass);
        for (int s = 0; s < traffic.stages(); ++s) {
          std::array<std::int64_t, 2> out{}, in{};
          const program::Part part = traffic.of(rank, s);
          for (std::int64_t i = part.sends.begin; i < part.sends.end; ++i) {
            const auto& message = traffic.messages(s)[static_cast<std::size_t>(i)];
            out[message.results ? 1 : 0] += message.copied_out;
          }
          for (const std::uint32_t i : part.receives) {
            const auto& message = traffic.messages(s)[i];
            in[message.results ? 1 : 0] += message.copied_in;
          }
          const StageBinding& bound = binding.of(pass)[static_cast<std::size_t>(s)];
          EXPECT_EQ(bound.inputs.sends.copied, out[0]);
          EXPECT_EQ(bound.results.sends.copied, out[1]);
          EXPECT_EQ(bound.inputs.receives.copied, in[0]);
          EXPECT_EQ(bound.results.receives.copied, in[1]);
        }
      }
    });
  }
}

/// Two trainers, one long document on the first: CAD moves a part of it.
program::TickPlans moving_plans() {
  program::TickPlans plans;
  plans.forward = plan::cad(plan::test::workload({{900}, {30}}), 64, 0.02);
  plans.backward = plan::mirror(plans.forward);
  program::add_traffic(plans);
  return plans;
}

TEST(Binding, APlanThatForgetsRowsIsRefusedByTheValidatorAndNeverBound) {
  for (const Tensor what : {Tensor::q, Tensor::k}) {
    program::TickPlans plans = moving_plans();
    EXPECT_NO_THROW(bind(plans, 1, 1));
    EXPECT_NO_THROW(plan::require_valid(plans.forward, plans.backward));
    for (plan::Stage& stage : plans.forward.stages) {
      const auto move = std::ranges::find(stage.moves, what, &plan::Move::what);
      if (move != stage.moves.end()) stage.moves.erase(move);
    }
    program::add_traffic(plans);
    EXPECT_THROW(plan::require_valid(plans.forward, plans.backward), Error);
    EXPECT_THROW(bind(plans, 1, 1), Error);
  }
}

TEST(Binding, APlanThatSendsRowsWhichNobodyHasIsNeverBound) {
  program::TickPlans plans = moving_plans();
  for (plan::Stage& stage : plans.forward.stages) {
    for (plan::Move& move : stage.moves) move.document = 1 - move.document;
  }
  program::add_traffic(plans);
  EXPECT_THROW(bind(plans, 0, 1), Error);
}

}  // namespace
}  // namespace cadenza::exec
