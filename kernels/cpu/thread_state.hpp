// SPDX-License-Identifier: Apache-2.0
// State that an instruction set keeps per thread while the thread works on a call.
#pragma once

#include "tile_kernels.hpp"

namespace cadenza::kernels::cpu {

class ThreadState {
 public:
  explicit ThreadState(const TileKernels& kernels) : end_(kernels.end_thread) {
    if (kernels.begin_thread != nullptr) kernels.begin_thread();
  }
  ~ThreadState() {
    if (end_ != nullptr) end_();
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  void (*end_)();
};

}  // namespace cadenza::kernels::cpu
