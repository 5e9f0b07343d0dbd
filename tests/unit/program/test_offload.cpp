// SPDX-License-Identifier: Apache-2.0
// Activations that wait in host memory: whether every operation finds its layer's in memory, on
// programs of random shapes and on ones with a planted fault.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "unit/program/support.hpp"

namespace cadenza::program::test_offload {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

/// One rank per pipeline stage, attention at home.
config::Experiment experiment_of(int layers, int stages, int chunks, int microbatches) {
  config::Experiment e = test::experiment_of(1, 0, layers, microbatches);
  e.parallel.pipeline = stages;
  e.parallel.chunks = chunks;
  e.attention.placement = config::PlacementKind::colocated;
  e.attention.overlap = config::Overlap::none;
  e.run.offload = config::Offload::activations;
  return e;
}

std::vector<TickPlans> plans_of(const StepShape& step_shape) {
  std::vector<TickPlans> all;
  for (std::size_t tick = 0; tick < step_shape.ticks().size(); ++tick) {
    for (int half = 0; half < step_shape.halves; ++half) {
      TickPlans plans;
      plans.half = half;
      plans.forward.workload.lengths = {1};
      plans.forward.workload.servers = {0};
      plans.forward.workload.homes = {{0, 0, {0, 1}}};
      plans.forward.stages = {{{}, {test::task_on(0)}}};
      plans.backward = plans.forward;
      add_traffic(plans);
      all.push_back(plans);
    }
  }
  return all;
}

/// What memory holds while a trainer's program runs.
class Memory {
 public:
  Memory(const StepShape& step_shape, int stage)
      : step_shape_(step_shape), stage_(stage), slots_(step_shape.slots(stage)) {}

  std::vector<std::string> faults_of(const Program& program) {
    for (const Instruction& s : program.instructions) run(s);
    return faults_;
  }
  int copies() const { return copies_; }

 private:
  using Layer = std::pair<int, int>;  ///< buffer and layer
  struct Slot {
    std::optional<Layer> holder;
    bool out = false, in = false;  ///< a copy is under way
  };

  int first_of(int chunk) const {
    std::int64_t first = 0;
    for (int before = 0; before < chunk; ++before) {
      first += step_shape_.chunk_layers(stage_, before).size();
    }
    return static_cast<int>(first);
  }
  int last_of(int chunk) const {
    return first_of(chunk) + static_cast<int>(step_shape_.chunk_layers(stage_, chunk).size()) - 1;
  }
  Slot& slot_of(const Instruction& s, int layer) {
    return slots_held_[(layer - first_of(s.chunk)) % slots_];
  }
  void expect(bool holds, const char* what, const Instruction& s) {
    if (!holds) faults_.push_back(fmt::format("{}: {}", to_string(s), what));
  }

  /// The operation reads or writes what a layer keeps.
  void use(const Instruction& s, int layer, bool writes = true) {
    const Slot& slot = slot_of(s, layer);
    expect(slot.holder == Layer(s.buffer, layer), "the memory has another layer", s);
    expect(!slot.in, "its copy may not be there", s);
    expect(!writes || !slot.out, "it writes to what is being copied", s);
  }
  /// The operation is the first to write to a layer's memory.
  void begin(const Instruction& s, int layer) {
    Slot& slot = slot_of(s, layer);
    expect(!slot.in && !slot.out, "the memory is being copied", s);
    expect(!slot.holder || saved_.contains(*slot.holder), "what the memory has is lost", s);
    slot.holder = Layer(s.buffer, layer);
  }

  void run(const Instruction& s) {
    using enum Operation;
    const bool forward = s.pass == Pass::forward;
    const bool first_half = s.half == (forward ? 0 : step_shape_.halves - 1);
    const bool last_half = s.half == (forward ? step_shape_.halves - 1 : 0);
    if (s.operation == offload || s.operation == fetch) return copy(s);
    if (s.operation == wait_for_copy) {
      expect(s.slot == (s.layer - first_of(s.chunk)) % slots_, "it is another layer's memory", s);
      slot_of(s, s.layer).in = slot_of(s, s.layer).out = false;
    } else if (s.operation == embed || (s.operation == receive && forward)) {
      if (first_half) begin(s, first_of(s.chunk));
    } else if (s.operation == loss || (s.operation == send && forward)) {
      use(s, last_of(s.chunk), false);
    } else if (s.layer >= 0 && s.operation != reduce_layer) {
      use(s, s.layer);
      if (!forward || s.recompute) {
        if (s.operation == attention_inputs && !s.recompute && last_half) {
          slot_of(s, s.layer).holder.reset();
        }
        return;
      }
      if (s.operation == attention_inputs && s.layer > first_of(s.chunk)) {
        use(s, s.layer - 1, false);
      }
      if (s.operation == attention_outputs && s.layer < last_of(s.chunk)) {
        first_half ? begin(s, s.layer + 1) : use(s, s.layer + 1);
      }
    }
  }

  void copy(const Instruction& s) {
    ++copies_;
    Slot& slot = slot_of(s, s.layer);
    const Layer layer(s.buffer, s.layer);
    if (s.operation == Operation::offload) {
      expect(slot.holder == layer && !slot.in, "it copies what is not there", s);
      slot.out = true;
      saved_.insert(layer);
      return;
    }
    expect(saved_.erase(layer) > 0, "it was not copied out", s);
    expect(!slot.holder || slot.holder == layer || saved_.contains(*slot.holder),
           "what the memory has is lost", s);
    slot.holder = layer;
    slot.in = true;
  }

  const StepShape& step_shape_;
  int stage_, slots_, copies_ = 0;
  std::map<int, Slot> slots_held_;
  std::set<Layer> saved_;
  std::vector<std::string> faults_;
};

std::vector<std::string> copies_of(const Program& program) {
  std::vector<std::string> lines;
  for (const Instruction& s : program.instructions) {
    const bool copies = s.operation == Operation::offload || s.operation == Operation::fetch;
    const bool computes =
        s.operation == Operation::attention_inputs || s.operation == Operation::attention_outputs;
    if (copies || computes || s.operation == Operation::wait_for_copy) {
      lines.push_back(fmt::format("{}{} {}", s.pass == Pass::forward ? "" : "back ",
                                  name(s.operation), s.layer));
    }
  }
  return lines;
}

TEST(Offload, LayersLeaveWhenTheNextHasReadThemAndComeTwoAhead) {
  const StepShape step_shape(experiment_of(5, 1, 1, 1));
  EXPECT_THAT(copies_of(make_program(step_shape, 0, plans_of(step_shape))),
              ElementsAre("wait_for_copy 0", "attention_inputs 0",                         //
                          "wait_for_copy 1", "attention_outputs 0", "attention_inputs 1",  //
                          "offload 0",                                                     //
                          "wait_for_copy 2", "attention_outputs 1", "attention_inputs 2",  //
                          "offload 1",                                                     //
                          "wait_for_copy 3", "attention_outputs 2", "attention_inputs 3",  //
                          "wait_for_copy 4", "attention_outputs 3", "attention_inputs 4",  //
                          "attention_outputs 4",                                           //
                          "back wait_for_copy 4", "back wait_for_copy 4",                  //
                          "back attention_outputs 4", "back attention_inputs 4", "back fetch 1",
                          "back wait_for_copy 3",  //
                          "back attention_outputs 3", "back attention_inputs 3", "back fetch 0",
                          "back wait_for_copy 2",                                 //
                          "back attention_outputs 2", "back attention_inputs 2",  //
                          "back wait_for_copy 1",                                 //
                          "back attention_outputs 1", "back attention_inputs 1",  //
                          "back wait_for_copy 0",                                 //
                          "back attention_outputs 0", "back attention_inputs 0"));
}

TEST(Offload, FewLayersStay) {
  const StepShape step_shape(experiment_of(3, 1, 1, 2));
  Memory memory(step_shape, 0);
  EXPECT_THAT(memory.faults_of(make_program(step_shape, 0, plans_of(step_shape))), IsEmpty());
  EXPECT_EQ(memory.copies(), 0);
}

/// Programs of random shapes, and the same without one of their copies.
TEST(Offload, EveryOperationFindsItsLayer) {
  int copies = 0, found = 0, planted = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    plan::test::Draw draw(seed);
    const int stages = static_cast<int>(draw.between(1, 3));
    const int chunks = stages > 1 ? static_cast<int>(draw.between(1, 2)) : 1;
    const int parts = stages * chunks;
    const int layers = parts * static_cast<int>(draw.between(1, 5));
    config::Experiment e =
        experiment_of(layers, stages, chunks, stages * static_cast<int>(draw.between(1, 3)));
    if (draw.between(0, 1) == 0) e.attention.overlap = config::Overlap::ping_pong;
    e.run.recompute = draw.any<config::Recompute>();
    const StepShape step_shape(e);
    const std::vector<TickPlans> plans = plans_of(step_shape);
    for (int stage = 0; stage < stages; ++stage) {
      Program program = make_program(step_shape, stage, plans);
      Memory memory(step_shape, stage);
      EXPECT_THAT(memory.faults_of(program), IsEmpty());
      copies += memory.copies();
      // Without one of the copies. (Back need not come what nothing has overwritten.)
      std::vector<std::size_t> places;
      for (std::size_t i = 0; i < program.instructions.size(); ++i) {
        if (program.instructions[i].operation == Operation::offload) places.push_back(i);
      }
      if (places.empty()) continue;
      ++planted;
      program.instructions.erase(program.instructions.begin() +
                                 static_cast<std::ptrdiff_t>(draw.of(places)));
      found += !Memory(step_shape, stage).faults_of(program).empty();
    }
  }
  EXPECT_GT(copies, 2000);
  EXPECT_GT(planted, 100);
  EXPECT_EQ(found, planted);
}

TEST(Offload, AMissingWaitOrFetchIsFound) {
  const StepShape step_shape(experiment_of(7, 1, 1, 1));
  const Program whole = make_program(step_shape, 0, plans_of(step_shape));
  std::map<Operation, int> found;
  for (std::size_t i = 0; i < whole.instructions.size(); ++i) {
    Program program = whole;
    program.instructions.erase(program.instructions.begin() + static_cast<std::ptrdiff_t>(i));
    found[whole.instructions[i].operation] += !Memory(step_shape, 0).faults_of(program).empty();
  }
  // Forward, layers 3 to 6 follow one that leaves; backward, 0 to 3 come.
  EXPECT_EQ(found[Operation::wait_for_copy], 8);
  EXPECT_EQ(found[Operation::fetch], 4);
}

}  // namespace
}  // namespace cadenza::program::test_offload
