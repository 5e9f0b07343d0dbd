// SPDX-License-Identifier: Apache-2.0
// NCCL's own groups, on a stream beside the one of the kernels.
#include "queue.hpp"

#ifdef KOKKOS_ENABLE_CUDA

#include "cadenza/base/error.hpp"

#ifdef CADENZA_NCCL

#include <nccl.h>

#include <array>
#include <deque>
#include <exception>

#include "cadenza/kernels/device.hpp"

namespace cadenza::exec::nccl {
namespace {

using comm::Reduction;

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  fail(ExitCode::communication, "{} failed: {}", call, cudaGetErrorString(result));
}

void check(ncclResult_t result, const char* call) {
  // A communicator that does not block answers "in progress" and goes on by itself.
  if (result == ncclSuccess || result == ncclInProgress) return;
  fail(ExitCode::communication, "{} failed: {}", call, ncclGetErrorString(result));
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;

  void record(cudaStream_t stream) const {
    check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  void hold(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  bool happened() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result != cudaErrorNotReady) check(result, "cudaEventQuery");
    return result == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

cudaStream_t kernels_stream() {
  return Device().cuda_stream();
}

std::size_t element_bytes(Type type) {
  return type == Type::float32 ? sizeof(float) : sizeof(double);
}
ncclDataType_t nccl_type(Type type) {
  return type == Type::float32 ? ncclFloat32 : ncclFloat64;
}
ncclRedOp_t nccl_op(Reduction op) {
  return op == Reduction::max ? ncclMax : op == Reduction::min ? ncclMin : ncclSum;
}

class LibraryQueue final : public Queue {
 public:
  explicit LibraryQueue(comm::Communicator& group) : group_(group) {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
          "cudaStreamCreate");
    connect();
  }
  ~LibraryQueue() override {
    // Its destruction is collective: while an exception unwinds, the other ranks are not here.
    if (comm_ != nullptr) {
      std::uncaught_exceptions() == 0 ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void start() override {
    begin_.record(kernels_stream());
    begin_.hold(stream_);
    check(ncclGroupStart(), "ncclGroupStart");
  }
  Ticket end() override {
    check(ncclGroupEnd(), "ncclGroupEnd");
    settle("ncclGroupEnd");
    ends_.push_back(free_event());
    ends_.back().record(stream_);
    return ++ended_;
  }

  void send(std::span<const std::byte> data, int to) override {
    check(ncclSend(data.data(), data.size(), ncclChar, to, comm_, stream_), "ncclSend");
  }
  void receive(std::span<std::byte> data, int from) override {
    check(ncclRecv(data.data(), data.size(), ncclChar, from, comm_, stream_), "ncclRecv");
  }
  void all_reduce(std::span<std::byte> data, Type type, Reduction op) override {
    check(ncclAllReduce(data.data(), data.data(), data.size() / element_bytes(type),
                        nccl_type(type), nccl_op(op), comm_, stream_),
          "ncclAllReduce");
  }
  void reduce(std::span<const std::byte> data, std::span<std::byte> sum, Type type,
              int root) override {
    check(ncclReduce(data.data(), sum.data(), data.size() / element_bytes(type), nccl_type(type),
                     ncclSum, root, comm_, stream_),
          "ncclReduce");
  }
  void broadcast(std::span<const std::byte> data, std::span<std::byte> all, int root) override {
    check(ncclBroadcast(data.data(), all.data(), all.size(), ncclChar, root, comm_, stream_),
          "ncclBroadcast");
  }

  void let_kernels_wait(Ticket group) override {
    if (const Event* end = end_of(group)) end->hold(kernels_stream());
  }
  bool is_done(Ticket group) override {
    const Event* end = end_of(group);
    return end == nullptr || end->happened();
  }

 private:
  void connect() {
    ncclUniqueId id{};
    if (group_.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    group_.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(ncclCommInitRankConfig(&comm_, group_.size(), id, group_.rank(), &config),
          "ncclCommInitRankConfig");
    settle("ncclCommInitRankConfig");
  }
  /// Waits for what the library does by itself, watched as all waits are.
  /// @throws Error(communication) where it failed, on this rank or on another
  void settle(const char* call) {
    group_.wait_until(call, [&] {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
      check(state, call);
      return state != ncclInProgress;
    });
  }
  /// None where the group was done long ago and its event has another meaning now.
  const Event* end_of(Ticket group) const {
    const Ticket oldest = ended_ - static_cast<Ticket>(ends_.size()) + 1;
    return group < oldest ? nullptr : &ends_[static_cast<std::size_t>(group - oldest)];
  }
  /// The events of groups that are done are used again: none is made in a step like the last one.
  Event free_event() {
    if (ends_.empty() || !ends_.front().happened()) return {};
    Event event = std::move(ends_.front());
    ends_.pop_front();
    return event;
  }

  comm::Communicator& group_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Event begin_;
  std::deque<Event> ends_;  ///< of the last groups, in order
  Ticket ended_ = 0;
};

}  // namespace

bool has_library() {
  return true;
}

std::unique_ptr<Queue> make_queue(comm::Communicator& group) {
  return std::make_unique<LibraryQueue>(group);
}

}  // namespace cadenza::exec::nccl

#else

namespace cadenza::exec::nccl {

bool has_library() {
  return false;
}

std::unique_ptr<Queue> make_queue(comm::Communicator&) {
  fail(ExitCode::internal, "this program was built without NCCL");
}

}  // namespace cadenza::exec::nccl

#endif
#endif
