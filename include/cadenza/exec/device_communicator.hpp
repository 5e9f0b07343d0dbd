// SPDX-License-Identifier: Apache-2.0
// Messages and collectives of a group of ranks out of and into device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::exec {

/// What a communicator carries: says how much of a device it may take.
enum class Purpose {
  attention,  ///< inputs or results
  streams,    ///< of one edge of a pipeline, in one pass
  gradients,  ///< and parameters
  slices,     ///< of matrices: collectives that all wait for
};

/// A group of ranks whose buffers are device memory. A call reads what the kernels wrote that were
/// on the stream before it; kernels that are started after a call has returned, or after the
/// wait() for what it posted, read what arrived. Between post and wait nothing on the device may
/// write what is sent, or touch what is received.
class DeviceCommunicator : public comm::MessagePassing {
 public:
  explicit DeviceCommunicator(comm::Communicator& group) : group_(group) {}
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  /// The same ranks, for what is in host memory.
  comm::Communicator& group() const { return group_; }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

 private:
  comm::Communicator& group_;
};

/// What carries messages between devices, where the experiment does not say it: `mpi` where tensors
/// are in the host's memory; on devices `nccl`, or `staged` where the build has no NCCL or ranks
/// share a device. MPI is not given the memory of a device: what Open MPI can do with it differs
/// from call to call, and our own sums of messages are the host's.
/// @param shared  whether ranks share a device
/// @throws Error(usage) where what the experiment asks for is not possible
config::Transport choose_transport(config::Transport asked, bool shared);

/// Whether tensors are in the host's memory.
bool host_holds_tensors();

/// A line about one that was chosen.
std::string describe_transport(config::Transport transport);

/// @param transport  what choose_transport chose, or as an experiment says it: `auto` as if
///                   devices were shared
/// @throws Error(usage) as choose_transport does
std::unique_ptr<DeviceCommunicator> make_device_communicator(comm::Communicator& group,
                                                             config::Transport transport,
                                                             Purpose purpose);

}  // namespace cadenza::exec
