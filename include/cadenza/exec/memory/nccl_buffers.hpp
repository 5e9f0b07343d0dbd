// SPDX-License-Identifier: Apache-2.0
// What communicators are for, how many channels NCCL may use for each, and what it then allocates.
#pragma once

#include <cstdint>

namespace cadenza::exec {

/// Purpose of a communicator: limits how many multiprocessors of a device it may take.
enum class Purpose {
  attention,  ///< inputs or results of attention
  streams,    ///< residual streams over one edge of a pipeline, in one pass
  gradients,  ///< gradients and parameters
  slices,     ///< slices of matrices: collectives that block
};

namespace nccl {

#ifdef CADENZA_NCCL
inline constexpr bool kHasLibrary = true;
#else
inline constexpr bool kHasLibrary = false;
#endif

/// Returns the largest number of channels by purpose. Chosen, not measured: all communicators of a
/// rank together (two of attention for each half, four edges of a pipeline, gradients, slices) have
/// 64, so that on the smallest device, with 108 multiprocessors, all can run at the same time, in
/// whatever order the device starts them. NCCL_MAX_CTAS replaces these numbers.
constexpr int most_channels(Purpose purpose) {
  switch (purpose) {
    case Purpose::attention:
    case Purpose::gradients:
    case Purpose::slices:
      return 8;
    case Purpose::streams:
      return 4;
  }
  return 1;
}

// Upper bounds on what NCCL allocates on a device: NCCL has no call that tells.

/// Returns the bytes of one communicator's buffers, at most.
/// @param ends  ends of connections: ranks to which this rank sends plus ranks from which it
/// receives
std::int64_t buffer_bytes(Purpose purpose, std::int64_t ends);

/// Returns the number of connection ends of a rank for the collectives of `ranks`.
std::int64_t ends_of_collectives(std::int64_t ranks);

}  // namespace nccl
}  // namespace cadenza::exec
