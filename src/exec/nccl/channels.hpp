// SPDX-License-Identifier: Apache-2.0
// How many channels NCCL may use: each takes a multiprocessor while a group runs, and memory for
// every rank that it is connected to.
#pragma once

#include "cadenza/exec/device_communicator.hpp"

namespace cadenza::exec::nccl {

/// Not measured. All communicators of a rank together (two of attention for each half, four edges
/// of a pipeline, gradients, slices) have 64, so that on the smallest device, with 108
/// multiprocessors, all of them can run at a time, whatever order the device starts them in.
/// NCCL_MAX_CTAS replaces them.
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

}  // namespace cadenza::exec::nccl
