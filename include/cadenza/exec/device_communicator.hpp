// SPDX-License-Identifier: Apache-2.0
// Messages and collectives of a group of ranks between device memories.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/exec/memory/nccl_buffers.hpp"

namespace cadenza::exec {

/// A group of ranks whose buffers are device memory. A call reads what the kernels wrote that were
/// on the stream before it. Kernels that start after a blocking call returned, or after the wait()
/// for a posted one, read the data that arrived. Between post and wait, nothing on the device may
/// write to send buffers or touch receive buffers.
class DeviceCommunicator : public comm::MessagePassing {
 public:
  explicit DeviceCommunicator(comm::Communicator& group) : group_(group) {}
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  /// The communicator of the same ranks for host memory.
  comm::Communicator& group() const { return group_; }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

 private:
  comm::Communicator& group_;
};

/// Chooses the transport between devices if the experiment leaves it open: `mpi` where tensors are
/// in host memory; on devices `nccl`, or `staged` if the build has no NCCL or ranks share a device.
/// MPI never gets device memory: Open MPI's support for it differs from call to call, and we sum
/// messages ourselves, on the host.
/// @param shared  whether ranks share a device
/// @throws Error(usage) if the transport that the experiment asks for is not possible
config::Transport choose_transport(config::Transport asked, bool shared);

/// Whether tensors are in host memory.
bool host_holds_tensors();

/// Describes a chosen transport in one line.
std::string describe_transport(config::Transport transport);

/// @param transport  result of choose_transport, or the experiment's setting: `auto` as if devices
/// were shared
/// @throws Error(usage) as choose_transport does
std::unique_ptr<DeviceCommunicator> make_device_communicator(comm::Communicator& group,
                                                             config::Transport transport,
                                                             Purpose purpose);

}  // namespace cadenza::exec
