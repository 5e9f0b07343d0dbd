// SPDX-License-Identifier: Apache-2.0
// A block of a device on the host: its threads are contexts of one host thread that take turns in
// random order, some warps far ahead of others, and stop where a device's threads wait for each
// other. What DeviceThread does with PTX, EmulatedThread does as the PTX ISA describes it, lane by
// lane.
//
// It finds what a device would not tell: a wait that is missing (copies to shared memory arrive at
// once or at the last moment, the order of threads is random, what nobody wrote is NaN), lanes of a
// warp that part, a block that waits for ever, a copy outside shared memory or not on 16 bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "../../../kernels/device/problem.hpp"
#include "unit/kernels/emulated_arithmetic.hpp"
#include "unit/kernels/fibers.hpp"

namespace cadenza::testing {

using kernels::device::Bits;

class EmulatedBlock;

/// The interface of kernels::mma::DeviceThread.
class EmulatedThread : public EmulatedArithmetic {
 public:
  EmulatedThread(EmulatedBlock& block, int index) : block_(&block), index_(index) {}
  int index() const { return index_; }
  void barrier() const;
  void copy(Bits* to, const Bits* from, bool inside) const { copy_bytes(to, from, 16, inside); }
  void copy_number(float* to, const float* from, bool inside) const {
    copy_bytes(to, from, 4, inside);
  }
  void commit() const;
  template <int kLater>
  void wait() const {
    wait_but(kLater);
  }
  void load(unsigned (&to)[4], const Bits* row) const;
  void load_transposed(unsigned (&to)[4], const Bits* row) const;
  void multiply_add(float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                    unsigned right1) const;
  float exchanged(float value, int bits) const;
  bool any(bool of) const;
  void warp_barrier() const { any(false); }

 private:
  void copy_bytes(void* to, const void* from, std::size_t bytes, bool inside) const;
  void wait_but(std::size_t later) const;
  EmulatedBlock* block_;
  int index_;
};

class EmulatedBlock {
 public:
  using Body = std::function<void(const EmulatedThread&)>;

  /// Of whole warps. `planted`: nth barrier of every thread that is left out, to see that it is
  /// missed; -1: none.
  EmulatedBlock(int threads, int shared_bytes, std::uint64_t seed, int planted = -1);

  Bits* shared() { return reinterpret_cast<Bits*>(shared_.data()); }

  /// Runs all threads to their ends. @throws std::runtime_error where they cannot all end.
  void run(const Body& body);

 private:
  friend class EmulatedThread;
  static constexpr int kLanes = 32;

  enum class Kind { load, load_transposed, multiply_add, exchange, any };
  /// What a lane asks its warp for; pointers lead to its own stack, where it waits.
  struct Request {
    Kind kind = Kind::load;
    const Bits* row = nullptr;
    unsigned* to = nullptr;
    float* sum = nullptr;
    const unsigned* left = nullptr;
    unsigned right[2] = {};
    float* value = nullptr;
    int bits = 0;
    bool* flag = nullptr;
  };
  struct alignas(128) Line {
    unsigned char bytes[128];
  };
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
    bool inside = false;
  };
  struct Thread {
    std::vector<std::vector<Copy>> groups = {{}};  ///< of copies, the last one open
    Request request = {};
    int barriers = 0;
  };

  static void arrive(const Copy& copy);
  void ask(int index, const Request& request);
  void answer(int warp);
  void at_barrier(int index);
  void check_inside(const void* first, std::size_t bytes) const;
  [[noreturn]] void fail(const std::string& why);

  int bytes_;
  int planted_;
  std::vector<Line> shared_;
  Fibers fibers_;
  std::vector<Thread> threads_;
  std::vector<int> asking_;  ///< by warp
  int waiting_ = 0;          ///< at the barrier
};

}  // namespace cadenza::testing
