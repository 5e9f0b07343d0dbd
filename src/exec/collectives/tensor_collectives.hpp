// SPDX-License-Identifier: Apache-2.0
// Runs the collectives of the model's tensor group over a communicator.
#pragma once

#include <algorithm>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::exec {

/// Runs the collectives that the model asks for, and requires that they are exactly the program's
/// list for the operation: the simulator prices that list. Records what the rank waits in each.
template <typename Sum>
class TensorCollectives final : public model::TensorGroup<Sum> {
 public:
  TensorCollectives(DeviceCommunicator& group, Tracer& tracer) : group_(group), tracer_(tracer) {}

  /// Begins an operation that will ask for `expected`, in order.
  void begin(std::vector<program::TensorCollective> expected) {
    expected_ = std::move(expected);
    asked_ = 0;
  }
  /// Ends the operation. @throws Error(internal) unless all of them ran
  void end(program::Operation operation) const {
    if (asked_ == expected_.size() && under_way_.empty()) return;
    fail(ExitCode::internal, "{}: the model ran {} collectives of its tensor group, expected {}",
         program::name(operation), asked_ - under_way_.size(), expected_.size());
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void post(Collective what, int step, std::span<const std::byte> sent,
            std::span<std::byte> received) override {
    if (step == 1) under_way_.push_back(ask({what, bytes_of(sent) * size()}));
    const comm::Send send{sent, this->receiver(step), tag_of(what)};
    const comm::Receive receive{received, this->sender(step), tag_of(what)};
    group_.post({&receive, 1}, {&send, 1}, channel_of(what, step));
  }
  void wait(Collective what, int step) override {
    const auto at = std::ranges::find(under_way_, what, &UnderWay::what);
    if (at == under_way_.end()) {
      fail(ExitCode::internal, "{}: a wait for what was not posted",
           program::name(program::tensor_event(what)));
    }
    tracer_.add_wait(at->waited, [&] { group_.wait(channel_of(what, step)); });
    if (step + 1 < size()) return;
    tracer_.waited_inside(program::tensor_event(what), at->work, at->waited);
    under_way_.erase(at);
  }
  void all_reduce_sum(std::span<Sum> values) override { reduce(values, comm::Reduction::sum); }
  void all_reduce_max(std::span<Sum> values) override { reduce(values, comm::Reduction::max); }

 private:
  static constexpr int kTensorTag = 3000;

  template <typename T>
  static std::int64_t bytes_of(std::span<T> values) {
    return static_cast<std::int64_t>(values.size_bytes());
  }

  /// A collective whose last step is not awaited yet.
  struct UnderWay {
    Collective what;
    Work work;
    Tracer::Waited waited;
  };

  UnderWay ask(const program::TensorCollective& asked) {
    const program::EventKind kind = program::tensor_event(asked.what);
    if (asked_ == expected_.size() || asked != expected_[asked_]) {
      fail(ExitCode::internal, "the model's collective {} of its operation is {} of {} bytes, {}",
           asked_, program::name(kind), asked.bytes, describe_expected());
    }
    ++asked_;
    const Work work{.bytes = asked.bytes, .flow = tracer_.next_flow(group_.group(), kind)};
    return {asked.what, work, {}};
  }

  static int tag_of(Collective what) { return kTensorTag + static_cast<int>(what); }
  int channel_of(Collective what, int step) const {
    return (what == Collective::all_gather ? 0 : size()) + step;
  }

  std::string describe_expected() const {
    if (asked_ == expected_.size()) return "expected none";
    const program::TensorCollective& next = expected_[asked_];
    return fmt::format("expected {} of {} bytes", program::name(program::tensor_event(next.what)),
                       next.bytes);
  }

  void reduce(std::span<Sum> values, comm::Reduction op) {
    UnderWay collective = ask({Collective::all_reduce, bytes_of(values)});
    tracer_.add_wait(collective.waited, [&] { group_.all_reduce(values, op); });
    tracer_.waited_inside(program::tensor_event(collective.what), collective.work,
                          collective.waited);
  }

  DeviceCommunicator& group_;
  Tracer& tracer_;
  std::vector<program::TensorCollective> expected_;  ///< of the current operation
  std::size_t asked_ = 0;
  std::vector<UnderWay> under_way_;  ///< in the order of their posts, one of a kind at most
};

}  // namespace cadenza::exec
