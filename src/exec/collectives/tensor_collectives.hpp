// SPDX-License-Identifier: Apache-2.0
// Runs the collectives of the model's tensor group over a communicator.
#pragma once

#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::exec {

/// Runs the collectives that the model asks for, and requires that they are exactly the program's
/// list for the operation: the simulator prices that list.
template <typename Sum>
class TensorCollectives final : public model::TensorGroup<Sum> {
 public:
  TensorCollectives(DeviceCommunicator& group, Tracer& tracer) : group_(group), tracer_(tracer) {}

  /// Begins an operation that will ask for `expected`, in order.
  void begin(std::vector<program::TensorCollective> expected) {
    expected_ = std::move(expected);
    done_ = 0;
  }
  /// Ends the operation. @throws Error(internal) unless it has asked for all of them
  void end(program::Operation operation) const {
    if (done_ == expected_.size()) return;
    fail(ExitCode::internal, "{}: the model ran {} collectives of its tensor group, expected {}",
         program::name(operation), done_, expected_.size());
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    timed({Collective::all_gather, bytes_of(all)}, [&] { group_.all_gather(mine, all); });
  }
  void reduce_scatter(std::span<const Sum> all, std::span<Sum> mine) override {
    timed({Collective::reduce_scatter, bytes_of(all)}, [&] { group_.reduce_scatter(all, mine); });
  }
  void all_reduce_sum(std::span<Sum> values) override { reduce(values, comm::Reduction::sum); }
  void all_reduce_max(std::span<Sum> values) override { reduce(values, comm::Reduction::max); }

 private:
  template <typename T>
  static std::int64_t bytes_of(std::span<T> values) {
    return static_cast<std::int64_t>(values.size_bytes());
  }

  template <typename Operation>
  void timed(const program::TensorCollective& asked, Operation operation) {
    const program::EventKind kind = program::tensor_event(asked.what);
    if (done_ == expected_.size() || asked != expected_[done_]) {
      fail(ExitCode::internal, "the model's collective {} of its operation is {} of {} bytes, {}",
           done_, program::name(kind), asked.bytes, describe_expected());
    }
    ++done_;
    tracer_.time_inside(
        kind, {.bytes = asked.bytes, .flow = tracer_.next_flow(group_.group(), kind)}, operation);
  }

  std::string describe_expected() const {
    if (done_ == expected_.size()) return "expected none";
    const program::TensorCollective& next = expected_[done_];
    return fmt::format("expected {} of {} bytes", program::name(program::tensor_event(next.what)),
                       next.bytes);
  }

  void reduce(std::span<Sum> values, comm::Reduction op) {
    timed({Collective::all_reduce, bytes_of(values)}, [&] { group_.all_reduce(values, op); });
  }

  DeviceCommunicator& group_;
  Tracer& tracer_;
  std::vector<program::TensorCollective> expected_;  ///< of the current operation
  std::size_t done_ = 0;
};

}  // namespace cadenza::exec
