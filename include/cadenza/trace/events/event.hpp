// SPDX-License-Identifier: Apache-2.0
// The rows of a trace: schema cadenza-trace/1 (docs/trace.md). The structs are written to HDF5 as
// compound types; their members have the names of the columns, here and in the analysis.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "cadenza/base/event_context.hpp"
#include "cadenza/base/memory.hpp"

namespace cadenza::trace {

inline constexpr std::string_view kSchema = "cadenza-trace/1";

/// A number in a trace and its name; files contain both (docs/trace.md).
template <typename Enum>
struct Named {
  Enum value;
  std::string_view name;
};

enum class Lane : std::uint8_t { compute = 0, communication = 1, host = 2 };
inline constexpr std::array<Named<Lane>, 3> kLaneNames = {
    {{Lane::compute, "compute"}, {Lane::communication, "communication"}, {Lane::host, "host"}}};

/// Bits of Event::flags.
namespace flag {
inline constexpr std::uint8_t kDeviceTimed = 1u << 0;
inline constexpr std::uint8_t kSimulated = 1u << 1;
/// On the communication lane, where it may overlap other events. Not that the rank was free:
/// collectives of tensor groups block the operation around them.
inline constexpr std::uint8_t kNonBlocking = 1u << 2;
inline constexpr std::uint8_t kSends = 1u << 3;  ///< this rank sends the message
}  // namespace flag
inline constexpr std::array<Named<std::uint8_t>, 4> kFlagNames = {
    {{flag::kDeviceTimed, "device_timed"},
     {flag::kSimulated, "simulated"},
     {flag::kNonBlocking, "non_blocking"},
     {flag::kSends, "sends"}}};

/// One timed operation. -1 where a field does not apply.
struct Event {
  std::int64_t begin_ns = 0;  ///< rank-local monotonic clock
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;        ///< payload of communication
  double flops = 0;              ///< executed, multiply + add = 2
  std::int64_t enqueued_ns = 0;  ///< host enqueue time of a device operation
  std::int64_t still_ns = -1;    ///< time for which the rank stood still; -1: not measured
  std::uint32_t step = 0;
  std::int32_t peer = -1;  ///< world rank of the other end; -1: none or several
  /// Equal on both ends of a message and on all members of a collective; 0: none.
  std::uint32_t flow = 0;
  std::int32_t microbatch = -1;
  std::int32_t layer = -1;  ///< number among the rank's own layers
  std::int32_t tick = -1;
  std::int32_t stage = -1;
  std::int32_t half = -1;
  std::uint16_t name_id = 0;  ///< row of /meta/strings
  Category category = Category::host;
  Phase phase = Phase::other;
  Lane lane = Lane::compute;
  std::uint8_t flags = 0;  ///< bits of `flag`
  std::uint16_t reserved = 0;

  void set_context(const EventContext& place) {
    phase = place.phase;
    microbatch = place.microbatch;
    layer = place.layer;
    tick = place.tick;
    stage = place.stage;
    half = place.half;
  }
};
static_assert(sizeof(Event) == 88);

struct MemorySample {
  std::int64_t time_ns = 0;
  std::uint32_t step = 0;
  std::uint32_t reserved = 0;
  std::array<std::int64_t, kMemoryKinds> bytes{};  ///< by MemoryKind
  std::int64_t host_rss_bytes = 0;                 ///< resident set of the process
};

/// High-water marks of memory in a step.
struct MemoryHighwater {
  std::uint32_t step = 0;
  std::uint32_t reserved = 0;
  std::array<std::int64_t, kMemoryKinds> peak_bytes{};
  std::int64_t peak_total_bytes = 0;
};

/// A completed step: the commit record of a rank's file. Readers trust events[0, n_events_end) of
/// the last one.
struct StepRecord {
  std::uint32_t step = 0;
  std::uint32_t documents = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t tokens = 0;
  double sum_length2 = 0;     ///< sum over documents of length squared
  double model_flops = 0;     ///< model FLOPs of the whole step, all ranks
  double executed_flops = 0;  ///< FLOPs executed by this rank
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  std::uint64_t n_events_end = 0;  ///< rows of /events of this and all earlier steps
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double machine_seconds = 0;  ///< its computation at the machine file's rates; 0: not known
  /// FLOPs of core attention over all pairs that the mask allows, all ranks and passes.
  double dense_attention_flops = 0;
};

enum class ClockPhase : std::uint32_t { start = 0, periodic = 1, end = 2 };
inline constexpr std::array<Named<ClockPhase>, 3> kClockPhaseNames = {
    {{ClockPhase::start, "start"}, {ClockPhase::periodic, "periodic"}, {ClockPhase::end, "end"}}};

/// A measurement of this rank's clock against rank 0's: global = local + offset.
struct ClockSync {
  std::int64_t time_ns = 0;
  std::int64_t offset_ns = 0;
  std::int64_t rtt_min_ns = 0;
  std::uint32_t pings = 0;
  ClockPhase phase = ClockPhase::start;
};

/// A placed attention task of the step's plans.
struct PlannedTask {
  std::uint32_t step = 0;
  std::int32_t tick = 0;
  std::int32_t document = 0;
  std::int32_t home = 0;
  std::int32_t server = 0;
  std::int32_t stage = 0;
  std::int64_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
  double cost = 0;
  std::int32_t half = -1;        ///< half of the microbatch, in ping-pong
  std::int32_t layer_class = 0;  ///< class of the layers that have this plan of the tick
  std::int32_t layers = 0;       ///< number of layers of the class
  std::uint32_t reserved = 0;
};

/// The work of one server in a stage of a plan, in one layer: a row of /plan_summary.
struct PlannedStage {
  std::uint32_t step = 0;
  std::int32_t tick = 0;
  std::int32_t half = -1;
  std::uint32_t phase = 0;  ///< Phase::forward or backward
  std::int32_t stage = 0;
  std::int32_t server = 0;
  std::int32_t tasks = 0;
  std::int32_t messages_in = 0;  ///< inputs and results
  double cost = 0;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
  double attend_seconds = 0;     ///< predicted at the rates of cluster.machine, or nominal ones
  double receive_seconds = 0;    ///< predicted for bytes_in, likewise
  std::int32_t layer_class = 0;  ///< see PlannedTask
  std::int32_t layers = 0;
};

/// Losses of a step's targets on this rank that follow the places of their documents from
/// `position` up to that of the next row: a row of /positions.
struct PositionLoss {
  std::uint32_t step = 0;
  std::uint32_t reserved = 0;
  std::int64_t position = 0;
  std::int64_t targets = 0;
  std::int64_t hits = 0;  ///< targets that were the model's first choice
  double loss = 0;        ///< sum of their cross-entropies
};

/// A token of the answer to a question of a document (source retrieval): a row of /answers.
struct AnswerLoss {
  std::uint32_t step = 0;
  std::uint32_t hit = 0;      ///< 1: it was the model's first choice
  std::int64_t length = 0;    ///< tokens of the document
  std::int64_t fact = 0;      ///< place in the document where the answer is told
  std::int64_t position = 0;  ///< place in the document of the answer's token
  double loss = 0;
  std::int32_t document = 0;  ///< number among the step's documents
  std::int32_t question = 0;  ///< number of the question in its document
};

/// What sparse attention kept of the attention of sampled queries, in the layer that a step
/// sampled, at distances i - j from `distance` up to that of the next row: a row of /recall, of
/// rank 0.
struct DistanceRecall {
  std::uint32_t step = 0;
  std::int32_t layer = 0;
  std::int64_t distance = 0;
  double kept = 0;          ///< attention to kept keys; that of a query to all keys is 1
  double attention = 0;     ///< attention to all keys
  std::int64_t keys = 0;    ///< by head, that have queries at this distance or further
  std::int64_t unseen = 0;  ///< those of them that none of these queries sees
};

enum class Role : std::uint32_t { trainer = 0, attention_server = 1, both = 2 };
inline constexpr std::array<Named<Role>, 3> kRoleNames = {
    {{Role::trainer, "trainer"},
     {Role::attention_server, "attention_server"},
     {Role::both, "both"}}};

/// The rank that wrote the file.
struct RankInfo {
  std::string host;
  std::int32_t rank = 0;
  std::int32_t world = 1;
  std::int32_t local_rank = 0;
  Role role = Role::trainer;
  /// Coordinates; -1 on dedicated servers.
  std::int32_t data = 0, pipeline = 0, tensor = 0, context = 0;
  std::int32_t server = -1;  ///< index in the pool; -1: does not serve
  std::int32_t threads = 1;
  std::string device = "host";
  double peak_flops = 0;         ///< measured matrix-product rate of this rank, FLOP/s
  std::string attention_kernel;  ///< a word of attention.kernel; empty: simulated
  std::int64_t started_ns = -1;  ///< when its process began, as now_ns(); -1: simulated
};

/// The run of the trace.
struct RunInfo {
  std::string run_id;  ///< equal on all ranks
  std::string producer = "trainer";
  std::string code_version;
  std::string code_revision;  ///< revision of the sources: git describe
  std::string build;          ///< compiler, type, options
  std::string config_yaml;    ///< resolved experiment
  std::string machine_yaml;   ///< simulated machine; empty: not simulated
  std::uint64_t seed = 0;
  std::string created_utc;
};

/// Present time of the clock of events (CLOCK_MONOTONIC), nanoseconds.
std::int64_t now_ns();

/// When this process began on that clock, to 10 ms (/proc/self/stat, field 22); -1: not known.
std::int64_t process_started_ns();

}  // namespace cadenza::trace
