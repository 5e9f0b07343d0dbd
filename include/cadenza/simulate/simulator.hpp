// SPDX-License-Identifier: Apache-2.0
// The simulator: all ranks' programs of a step, advanced by a clock instead of executed. An
// operation starts when the one before it on its rank has ended and what it waits for is there;
// messages take their turns at the ports of ranks and network adapters.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/program/layout.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

/// What a rank was doing for a while.
enum class Activity : std::uint8_t {
  compute,      ///< the operation itself
  pack,         ///< rows into messages
  unpack,       ///< messages into rows; merging
  wait,         ///< blocked until messages are there
  drain,        ///< blocked until what it sent has left
  wait_ranks,   ///< blocked until the last rank of a collective is there
  collective,   ///< a collective that the rank waits for
  tensor,       ///< a collective of its tensor group, as a part of an operation
  message_out,  ///< under way, beside computation
  message_in,
  reduce,  ///< the sum of a layer's gradients, under way beside computation
};

struct Span {
  Rank rank = 0;
  const program::Step* step = nullptr;  ///< null when its program has ended
  Activity what = Activity::compute;
  double begin = 0;  ///< seconds from the start of the step
  double end = 0;
  std::int64_t bytes = 0;
  double flops = 0;
  double still = 0;  ///< seconds of it for which the rank stands still: a pause of cluster.faults
  Collective collective = Collective::all_gather;  ///< of `tensor`
  Rank peer = -1;                                  ///< world rank at the other end of a message
  std::uint32_t flow = 0;  ///< equal on both ends of a message and on all of a collective
};

/// Called for every span, in the order of begin on each rank's compute lane; messages when they
/// are over.
using Observer = std::function<void(const Span&)>;

/// Where a rank's step went, in seconds.
struct RankTimes {
  double attention = 0;  ///< core attention
  double dense = 0;      ///< the other layers, head and loss
  double other = 0;      ///< embedding, deltas of the backward pass
  double copies = 0;     ///< packing and unpacking
  double optimizer = 0;
  double waiting = 0;          ///< for messages: attention's and the pipeline's
  double collectives = 0;      ///< tensor group's, sums of gradients, and waiting for their ranks
  double end = 0;              ///< when its last operation was over
  double flops = 0;            ///< executed
  double attention_flops = 0;  ///< ... for core attention
  double machine = 0;  ///< busy() at the machine file's rates: without what makes ranks differ
  std::int64_t bytes_sent = 0;
  // What `waiting`, `collectives` and the time behind `end` were: those parts of a step that the
  // analysis finds in the trace (analysis/cadenza/time/parts.py).
  double communication = 0;         ///< data moves: all whom it takes are there
  double attention_wait = 0;        ///< inputs or results of attention are not on their way
  double pipeline_bubble = 0;       ///< another stage is not ready
  double tensor_parallel_wait = 0;  ///< for the last rank of the tensor group
  double data_parallel_wait = 0;    ///< for the last rank of a collective, or of the step
  double busy() const { return attention + dense + other + copies + optimizer; }
};

struct Result {
  double seconds = 0;            ///< of the step
  std::vector<RankTimes> ranks;  ///< by world rank
  /// No step takes less: all computation spread evenly over all ranks, nothing exposed.
  double lower_bound_seconds = 0;
  /// Core attention of the slowest rank in each layer and pass, summed.
  double slowest_attention = 0;
  std::uint64_t operations = 0;  ///< that the clock went through, messages included
};

/// @param programs  of all ranks, or, where ranks do not vary, of tensor coordinate 0 alone: the
///                  others do the same at the same time
/// @param step      of the run: jitter differs from step to step
/// @throws Error(communication) where they deadlock
Result simulate(const config::Experiment& experiment, const program::StepShape& step_shape,
                std::span<const program::Program> programs,
                std::span<const program::TickPlans> ticks, const Costs& costs,
                const Observer& observer = {}, std::int64_t step = 0);

/// One line for every rank that can never go on (a wait whose peer never posts, a stream that
/// nobody sends, a collective that not all of its ranks reach) or whose messages nobody takes;
/// none when all programs end.
std::vector<std::string> faults(const config::Experiment& experiment,
                                const program::StepShape& step_shape,
                                std::span<const program::Program> programs,
                                std::span<const program::TickPlans> ticks);

// Which ranks of a tensor group a simulation has to follow.

/// Whether all ranks of a tensor group do the same at the same time, so that the one at tensor
/// coordinate 0 can stand for them: the cluster does not vary, and each has the neighbours and the
/// share of an adapter that tensor coordinate 0 has.
bool tensor_ranks_alike(const config::Experiment& experiment, const program::Layout& layout,
                        const Costs& costs);

}  // namespace cadenza::simulate
