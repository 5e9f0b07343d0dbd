// SPDX-License-Identifier: Apache-2.0
// The simulator: a clock advances all ranks' programs of a step instead of executing them. An
// operation starts when the previous one of its rank has ended and its inputs are present; messages
// queue at the ports of ranks and network adapters.
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

/// What a rank does during a span.
enum class Activity : std::uint8_t {
  compute,      ///< the computation of an operation
  pack,         ///< copies rows into messages
  unpack,       ///< copies messages into rows; merges
  wait,         ///< blocked until messages arrive
  drain,        ///< blocked until its sends have left
  wait_ranks,   ///< blocked until the last rank of a collective arrives
  wait_layer,   ///< blocked until a layer's parameters are gathered
  collective,   ///< a blocking collective
  tensor,       ///< a collective of its tensor group, inside an operation
  message_out,  ///< under way during computation
  message_in,
  gather,  ///< a layer's parameters, from the rank's post on, under way during computation
  reduce,  ///< sum of a layer's gradients, under way during computation
};

struct Span {
  Rank rank = 0;
  const program::Instruction* instruction = nullptr;  ///< null after the end of its program
  Activity what = Activity::compute;
  double begin = 0;  ///< seconds from the start of the step, on its first rank
  double end = 0;
  std::int64_t bytes = 0;
  double flops = 0;
  double still = 0;  ///< seconds of it in which cluster.faults lets the rank stand still
  Collective collective = Collective::all_gather;  ///< for `tensor`
  Rank peer = -1;                                  ///< world rank at the other end of a message
  std::uint32_t flow = 0;  ///< equal at both ends of a message and on all ranks of a collective
};

/// Receives every span, in the order of begin on each rank's compute lane; messages when they end.
using Observer = std::function<void(const Span&)>;

/// Seconds of a rank's step by cause.
struct RankTimes {
  double attention = 0;  ///< core attention
  double dense = 0;      ///< the other layers, head and loss
  double other = 0;      ///< embedding, deltas of the backward pass
  double copies = 0;     ///< packing and unpacking
  double optimizer = 0;
  double waiting = 0;          ///< for messages of attention and of the pipeline
  double collectives = 0;      ///< of tensor groups, parameters and gradients, with waits for ranks
  double begin = 0;            ///< begin of its step; 0 on the rank that begins first
  double end = 0;              ///< end of its last operation
  double flops = 0;            ///< FLOPs executed
  double attention_flops = 0;  ///< FLOPs executed in core attention
  double machine = 0;  ///< busy() at the machine file's rates, without perturbation of ranks
  std::int64_t bytes_sent = 0;
  // Causes of `waiting`, `collectives` and the time after `end`: the parts of a step that the
  // analysis finds in a trace (analysis/cadenza/time/parts.py).
  double communication = 0;         ///< data moves: all participants are ready
  double attention_wait = 0;        ///< inputs or results of attention are not under way yet
  double pipeline_bubble = 0;       ///< another stage is not ready
  double tensor_parallel_wait = 0;  ///< for the last rank of the tensor group
  double data_parallel_wait = 0;    ///< for the last rank of a collective, or of the step
  double busy() const { return attention + dense + other + copies + optimizer; }
};

struct Result {
  double seconds = 0;            ///< from the begin of the first rank to the end of the last
  std::vector<RankTimes> ranks;  ///< by world rank
  /// No step is faster: all computation spread evenly over all ranks, with nothing exposed.
  double lower_bound_seconds = 0;
  /// Sum over layers and passes of the core attention of the slowest rank.
  double slowest_attention = 0;
  std::uint64_t operations = 0;  ///< events that the clock processed, messages included
};

/// Seconds after the end of the step before it at which each rank begins a step: 0, but for
/// cluster.faults.
std::vector<double> begins(const config::Experiment& experiment, std::int64_t step);

/// Simulates a step, from the begin of its first rank on.
/// @param programs  of all ranks, or, if tensor ranks are alike, of tensor coordinate 0 only: the
/// others do the same at the same time
/// @param step      number in the run: jitter differs from step to step
/// @throws Error(communication) if the programs deadlock
Result simulate(const config::Experiment& experiment, const program::StepShape& step_shape,
                std::span<const program::Program> programs,
                std::span<const program::TickPlans> tick_plans, const Costs& costs,
                const Observer& observer = {}, std::int64_t step = 0);

/// Returns one line for every deadlocked rank (a wait whose peer never posts, a stream that nobody
/// sends, a collective that some of its ranks never reach), otherwise for every message that only
/// one end posts; none if all programs end.
std::vector<std::string> faults(const config::Experiment& experiment,
                                const program::StepShape& step_shape,
                                std::span<const program::Program> programs,
                                std::span<const program::TickPlans> tick_plans);

// --- Ranks of a tensor group that a simulation has to follow ---

/// Whether all ranks of a tensor group do the same at the same time, so that tensor coordinate 0
/// can stand for them: the cluster does not vary, or slow ranks are whole groups; and each rank has
/// the same neighbours and adapter share as tensor coordinate 0.
bool tensor_ranks_alike(const config::Experiment& experiment, const program::Layout& layout,
                        const Costs& costs);

}  // namespace cadenza::simulate
