// SPDX-License-Identifier: Apache-2.0
// Times operations: their place in the step is set once, then each operation is one scope.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/memory.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/standstill.hpp"
#include "cadenza/kernels/named_range.hpp"
#include "cadenza/kernels/stream_times.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/trace/recorder.hpp"

namespace cadenza::exec {

/// Data of an event beyond time and context.
struct Work {
  std::int64_t bytes = 0;
  double flops = 0;
  std::int32_t peer = -1;
  std::uint32_t flow = 0;  ///< from Tracer::flow; 0: none
  bool sends = false;      ///< for a message: this rank is its sender
};

/// Busy time and work of a step by category, for metrics and the final table.
struct StepTotals {
  std::array<std::int64_t, kCategoryNames.size()> busy_ns{};
  std::map<program::LayerPass, std::int64_t> attention_ns;  ///< time in core attention
  double flops = 0;
  double attention_flops = 0;  ///< of core attention
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t of(Category category) const { return busy_ns[at(category)]; }
};

class Tracer {
 public:
  /// @param events, memory  whether to record them; totals are kept in any case
  Tracer(trace::Recorder& recorder, const MemoryLedger& ledger, bool events, bool memory);

  void begin_step(std::int64_t step);
  /// Waits for the stream and records the operations timed on it; then totals() are complete.
  void finish_step();
  void set_context(const EventContext& context) { context_ = context; }

  /// Names the current operation of this rank during its lifetime; a nested one counts as part of
  /// the outermost.
  class Doing {
   public:
    Doing(Tracer& tracer, program::EventKind kind)
        : tracer_(tracer), outermost_(!tracer.doing_), range_(program::name(kind)) {
      if (outermost_) tracer_.doing_ = kind;
    }
    ~Doing() {
      if (outermost_) tracer_.doing_.reset();
    }
    Doing(const Doing&) = delete;
    Doing& operator=(const Doing&) = delete;

   private:
    Tracer& tracer_;
    bool outermost_;
    NamedRange range_;
  };
  /// During its lifetime nothing is recorded, and totals() stay as they are.
  class Unrecorded {
   public:
    explicit Unrecorded(Tracer& tracer)
        : tracer_(tracer),
          events_(std::exchange(tracer.events_, false)),
          memory_(std::exchange(tracer.memory_, false)),
          totals_(tracer.totals_) {}
    ~Unrecorded() {
      tracer_.events_ = events_;
      tracer_.memory_ = memory_;
      tracer_.totals_ = totals_;
    }
    Unrecorded(const Unrecorded&) = delete;
    Unrecorded& operator=(const Unrecorded&) = delete;

   private:
    Tracer& tracer_;
    bool events_;
    bool memory_;
    StepTotals totals_;
  };
  /// Describes the current operation: "wait_results (step 17, forward, microbatch 0, layer 3)".
  std::string activity() const;

  /// Returns a flow number, equal for equal keys within this step only. The two ends of a message,
  /// and nobody else, pass the same key.
  std::uint32_t flow(const Hasher& key) const;
  /// Returns the flow number of a key that occurs several times in a step, in the same order at all
  /// ends.
  std::uint32_t next_flow(const Hasher& key);
  /// Returns the flow number of a group's next collective of this kind.
  std::uint32_t next_flow(const comm::Communicator& group, program::EventKind kind);

  /// Runs `operation` on the compute lane and records it. Does not wait for kernels: if they run
  /// later, marks on the stream note their times and finish_step() records them.
  template <typename Operation>
  void time(program::EventKind kind, const Work& work, Operation operation) {
    const Doing doing(*this, kind);
    const std::size_t mark = kStreamRunsLater ? stream_.mark() : 0;
    const std::int64_t begin = trace::now_ns();
    const Category category = program::category(kind);
    const bool attends = category == Category::compute_attention;  // and polls meanwhile
    const auto [end, still] = measure(begin, operation, attends);
    trace::Event timed = event(category, kind, trace::Lane::compute, begin, end, work);
    timed.still_ns = still;
    if constexpr (kStreamRunsLater) {
      unresolved_.push_back({timed, mark, stream_.mark()});
    } else {
      add(timed);
    }
  }
  /// What a rank waited for a collective in the middle of a computation, in one or several waits.
  struct Waited {
    std::int64_t ns = 0;
    std::int64_t still_ns = 0;
  };
  template <typename Operation>
  void add_wait(Waited& waited, Operation operation) {
    const std::int64_t begin = trace::now_ns();
    const auto [end, still] = measure(begin, operation);
    waited.ns += end - begin;
    waited.still_ns += still;
  }
  /// Records a collective that ends now, as if the rank had waited for it at once (communication
  /// lane).
  void waited_inside(program::EventKind kind, const Work& work, const Waited& waited) {
    const std::int64_t end = trace::now_ns();
    message(kind, end - waited.ns, end, work, waited.still_ns);
  }
  /// Runs `operation`, which computes nothing, and records it on the host lane.
  template <typename Operation>
  void time_host(program::EventKind kind, Operation operation) {
    time_on_host(program::category(kind), kind, operation, 0);
  }
  /// Runs a frequent, mostly short operation on the host lane and records it if it took at least 10
  /// us. If it contains operations with their own events, its category here is `host`.
  template <typename Operation>
  void time_if_long(program::EventKind kind, Operation operation) {
    constexpr std::int64_t kLongNs = 10'000;
    time_on_host(Category::host, kind, operation, kLongNs);
  }
  /// Records a message that was under way from `begin` to `end` (communication lane, non-blocking).
  void message(program::EventKind kind, std::int64_t begin, std::int64_t end, const Work& work,
               std::int64_t still = -1);

  /// Runs `operation`, which all ranks of `group` enter together: records first the wait for the
  /// last rank, then the operation itself as a collective.
  template <typename Operation>
  void time_collective(comm::Communicator& group, program::EventKind kind, const Work& work,
                       Operation operation) {
    const Doing doing(*this, kind);
    Work joined = work;
    joined.flow = next_flow(group, kind);
    fence();  // the wait is for other ranks, not for this one's own kernels
    time(program::OtherEvent::wait_for_ranks, {}, [&] { group.barrier(); });
    time(kind, joined, operation);
  }
  void sample_memory();

  /// Notes that the rank polled its messages: it does not stand still.
  void looked(std::int64_t now) { standstill_.looked(now); }

  void count_sent(std::int64_t bytes) { totals_.bytes_sent += bytes; }
  void count_received(std::int64_t bytes) { totals_.bytes_received += bytes; }
  const StepTotals& totals() const { return totals_; }

 private:
  struct Measured {
    std::int64_t end;
    std::int64_t still;  ///< ns for which the rank stood still; -1 if not recorded
  };
  template <typename Operation>
  Measured measure(std::int64_t begin, const Operation& operation, bool computes = false) {
    if (!events_) {
      operation();
      return {trace::now_ns(), -1};
    }
    const Standstill::Operation outer = standstill_.begin(begin);
    operation();
    const std::int64_t processor = Standstill::processor_ns();
    const std::int64_t end = trace::now_ns();
    return {end, standstill_.end(outer, processor, end, computes)};
  }
  template <typename Operation>
  void time_on_host(Category category, program::EventKind kind, const Operation& operation,
                    std::int64_t least_ns) {
    const Doing doing(*this, kind);
    const std::int64_t begin = trace::now_ns();
    const auto [end, still] = measure(begin, operation);
    if (end - begin < least_ns) return;
    trace::Event timed = event(category, kind, trace::Lane::host, begin, end, {});
    timed.still_ns = still;
    add(timed);
  }
  void add(const trace::Event& event);
  trace::Event event(Category category, program::EventKind kind, trace::Lane lane,
                     std::int64_t begin, std::int64_t end, const Work& work) const;

  /// An event whose times are marks on the stream.
  struct Unresolved {
    trace::Event event;
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  trace::Recorder& recorder_;
  const MemoryLedger& ledger_;
  StreamTimes stream_{trace::now_ns};
  std::vector<Unresolved> unresolved_;
  bool events_;
  bool memory_;
  std::array<std::uint16_t, program::kEventKinds> names_{};  ///< rows of the trace's string table
  Standstill standstill_;
  StepTotals totals_;
  std::uint32_t step_ = 0;
  EventContext context_;
  std::optional<program::EventKind> doing_;
  std::unordered_map<std::uint64_t, std::uint32_t> instances_;  ///< of flow keys, in this step
};

}  // namespace cadenza::exec
