// SPDX-License-Identifier: Apache-2.0
// The library's queue. Its communicators are non-blocking: waits for the library's work on the host
// happen where run.timeout is watched. It connects pairs where they are first used.
#ifdef CADENZA_NCCL

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstdlib>
#include <deque>
#include <exception>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#include "exec/nccl/queue.hpp"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0),
              "NCCL before 2.17 has no channel bounds");

namespace cadenza::exec::nccl {
namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    fail(ExitCode::communication, "{}: {}", call, cudaGetErrorString(status));
  }
}

ncclDataType_t type_of(comm::NumberType type) {
  switch (type) {
    case comm::NumberType::float32:
      return ncclFloat32;
    case comm::NumberType::float64:
      return ncclFloat64;
    case comm::NumberType::int64:
      return ncclInt64;
    case comm::NumberType::uint64:
      break;
  }
  return ncclUint64;
}

ncclRedOp_t operation_of(comm::Reduction op) {
  switch (op) {
    case comm::Reduction::min:
      return ncclMin;
    case comm::Reduction::max:
      return ncclMax;
    case comm::Reduction::sum:
      break;
  }
  return ncclSum;
}

class LibraryQueue final : public Queue {
 public:
  LibraryQueue(comm::Communicator& group, int channels) : group_(group.split(0)) {
    // Starts kernels of all communicators in call order, which ranks have in common: so none can
    // occupy the multiprocessors that one before it waits for. NCCL 2.26 and later support it.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    make_stream();
    check(cudaEventCreateWithFlags(&kernels_, cudaEventDisableTiming), "cudaEventCreate");
    connect(channels);
  }

  ~LibraryQueue() override {
    // While this rank unwinds, a peer may be gone, and all that follows waits for peers; the
    // process ends soon anyway.
    if (std::uncaught_exceptions() > 0) return;
    try {
      disconnect();
    } catch (const Error& error) {  // a peer is gone or hangs: the library must not wait for it
      fmt::print(stderr, "cadenza: NCCL was not ended in order: {}\n", error.what());
      ncclCommAbort(comm_);
    }
    for (const Ended& group : ended_) cudaEventDestroy(group.event);
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
    cudaEventDestroy(kernels_);
    cudaStreamDestroy(stream_);
  }

  void start() override {
    check(cudaEventRecord(kernels_, Device().cuda_stream()), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_, kernels_), "cudaStreamWaitEvent");
    check(ncclGroupStart(), "ncclGroupStart");
  }
  Ticket end() override {
    check(ncclGroupEnd(), "ncclGroupEnd");
    wait_for_host("NCCL group");
    forget_done();
    const cudaEvent_t event = take_event();
    check(cudaEventRecord(event, stream_), "cudaEventRecord");
    ended_.push_back({++tickets_, event});
    return tickets_;
  }

  void send(std::span<const std::byte> data, int to) override {
    check(ncclSend(data.data(), data.size(), ncclInt8, to, comm_, stream_), "ncclSend");
  }
  void receive(std::span<std::byte> data, int from) override {
    check(ncclRecv(data.data(), data.size(), ncclInt8, from, comm_, stream_), "ncclRecv");
  }
  void all_reduce(comm::Numbers data, comm::Reduction op) override {
    check(ncclAllReduce(data.bytes().data(), data.bytes().data(), data.size(), type_of(data.type()),
                        operation_of(op), comm_, stream_),
          "ncclAllReduce");
  }
  void reduce(comm::ConstNumbers data, comm::Numbers sum, int root) override {
    check(ncclReduce(data.bytes().data(), sum.bytes().data(), data.size(), type_of(data.type()),
                     ncclSum, root, comm_, stream_),
          "ncclReduce");
  }
  void broadcast(std::span<const std::byte> data, std::span<std::byte> all, int root) override {
    check(ncclBroadcast(data.data(), all.data(), all.size(), ncclInt8, root, comm_, stream_),
          "ncclBroadcast");
  }
  void reduce_scatter(comm::ConstNumbers all, comm::Numbers mine) override {
    check(ncclReduceScatter(all.bytes().data(), mine.bytes().data(), mine.size(),
                            type_of(mine.type()), ncclSum, comm_, stream_),
          "ncclReduceScatter");
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    check(ncclAllGather(mine.data(), all.data(), mine.size(), ncclInt8, comm_, stream_),
          "ncclAllGather");
  }

  void let_kernels_wait(Ticket group) override {
    for (const Ended& each : ended_) {
      if (each.ticket != group) continue;
      check(cudaStreamWaitEvent(Device().cuda_stream(), each.event), "cudaStreamWaitEvent");
    }
  }
  bool is_done(Ticket group) override {
    check_asynchronous("NCCL group");
    forget_done();
    return ended_.empty() || ended_.front().ticket > group;
  }

 private:
  struct Ended {
    Ticket ticket = 0;
    cudaEvent_t event = nullptr;  ///< recorded after the group
  };

  void check(ncclResult_t status, const char* call) const {
    if (status == ncclSuccess || status == ncclInProgress) return;
    fail(ExitCode::communication, "{}: {} ({})", call, ncclGetErrorString(status),
         ncclGetLastError(comm_));
  }
  void check(cudaError_t status, const char* call) const { nccl::check(status, call); }

  /// Waits until the library has finished its work on the host.
  void wait_for_host(const char* what) {
    group_->wait_until(what, [&] { return check_asynchronous(what) != ncclInProgress; });
  }
  /// Returns the state of groups that run already: a peer or a link may fail at any time.
  ncclResult_t check_asynchronous(const char* what) const {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), what);
    check(state, what);
    return state;
  }

  /// Makes a stream of the highest priority: it goes before kernels that wait for a multiprocessor.
  void make_stream() {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
          "cudaStreamCreate");
  }

  void connect(int channels) {
    ncclUniqueId id = {};
    if (group_->rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    group_->broadcast({reinterpret_cast<std::byte*>(&id), sizeof(id)}, 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = channels;
    config.cgaClusterSize = 1;  // a larger cluster waits for adjacent multiprocessors
    check(ncclCommInitRankConfig(&comm_, group_->size(), id, group_->rank(), &config),
          "ncclCommInitRank");
    wait_for_host("NCCL connection");
  }

  /// Ends the communicator: every wait is watched, as run.timeout says.
  void disconnect() {
    group_->wait_until("NCCL's last groups", [&] {
      forget_done();
      return ended_.empty();
    });
    check(ncclCommFinalize(comm_), "ncclCommFinalize");
    wait_for_host("ncclCommFinalize");
    check(ncclCommDestroy(comm_), "ncclCommDestroy");
  }

  void forget_done() {
    while (!ended_.empty()) {
      const cudaError_t status = cudaEventQuery(ended_.front().event);
      if (status == cudaErrorNotReady) {
        static_cast<void>(cudaGetLastError());  // so that the next launch does not report it
        return;
      }
      check(status, "NCCL group");
      free_.push_back(ended_.front().event);
      ended_.pop_front();
    }
  }
  cudaEvent_t take_event() {
    if (free_.empty()) {
      cudaEvent_t made = nullptr;
      check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreate");
      return made;
    }
    const cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }

  std::unique_ptr<comm::Communicator> group_;  ///< of its own: nobody else's messages
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t kernels_ = nullptr;  ///< recorded after the kernels for which the next group waits
  std::deque<Ended> ended_;        ///< groups that may still run, in order
  std::vector<cudaEvent_t> free_;
  Ticket tickets_ = 0;
};

}  // namespace

std::unique_ptr<Queue> make_queue(comm::Communicator& group, int channels) {
  return std::make_unique<LibraryQueue>(group, channels);
}

}  // namespace cadenza::exec::nccl

#endif
