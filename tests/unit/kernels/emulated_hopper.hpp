// SPDX-License-Identifier: Apache-2.0
// A block of a Hopper device on the host: what kernels::sm90::DeviceThread does with PTX,
// HopperThread does as the PTX ISA describes it. Everything that is asynchronous on a device
// (copies of the copy engine, copies of numbers, products) happens here at once, at the last
// moment, or at any time between; what nobody wrote is NaN.
//
// It finds what a device would not tell: a wait that is missing, a barrier that counts wrongly, a
// block that waits for ever, descriptors that do not fit what the copy engine wrote, threads of a
// warp or a warpgroup that part.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "../../../kernels/sm90/layout.hpp"
#include "../../../kernels/sm90/problem.hpp"
#include "unit/kernels/emulated_arithmetic.hpp"
#include "unit/kernels/fibers.hpp"

namespace cadenza::testing {

class EmulatedHopper;

/// The map that EmulatedHopper reads.
kernels::sm90::TensorMap emulated_map(const kernels::sm90::MappedRows& rows);

/// The interface of kernels::sm90::DeviceThread.
class HopperThread : public EmulatedArithmetic {
 public:
  using Barrier = std::uint64_t;
  using TensorMap = kernels::sm90::TensorMap;

  HopperThread(EmulatedHopper& block, int index) : block_(&block), index_(index) {}
  int index() const { return index_; }
  void block_barrier() const;
  void warp_barrier() const;
  void sync(int barrier, int threads) const;
  void arrive(int barrier, int threads) const;

  void initialize(Barrier* barrier, int arrivals) const;
  void publish_barriers() const {}
  void arrive(Barrier* barrier) const;
  void arrive_expecting(Barrier* barrier, int bytes) const;
  void arrive_when_copied(Barrier* barrier) const;
  void wait(Barrier* barrier, int parity) const;

  void acquire(const TensorMap*) const {}
  void copy_panel(void* panel, const TensorMap* map, Barrier* barrier, int column, int head,
                  int row) const;
  void copy_number(float* to, const float* from, bool inside) const;

  void begin_products() const {}
  template <int kFragments>
  void multiply(float (&sums)[kFragments][4], std::uint64_t left, std::uint64_t right,
                bool add) const {
    issue(kFragments, &sums[0][0], left, nullptr, right, add);
  }
  template <int kFragments>
  void multiply(float (&sums)[kFragments][4], const unsigned (&left)[4],
                std::uint64_t right) const {
    issue(kFragments, &sums[0][0], 0, left, right, true);
  }
  void commit_products() const;
  template <int kLater, int kFragments>
  void wait_products(float (&)[kFragments][4]) const {
    wait_groups(kLater);
  }
  template <int kFragments>
  void pin(float (&)[kFragments][4]) const {}

  int take(int* counter) const;
  void end_basic_block(float) const {}
  std::uint64_t uniform(std::uint64_t descriptor) const { return descriptor; }
  float exchanged(float value, int bits) const;
  unsigned shared_address(const void* shared) const;

 private:
  void issue(int tiles, float* sums, std::uint64_t left, const unsigned* registers,
             std::uint64_t right, bool add) const;
  void wait_groups(int later) const;

  EmulatedHopper* block_;
  int index_;
};

/// A wait or an arrival that is left out: the nth of its kind by every thread of the role.
struct HopperFault {
  enum class Kind { none, wait, arrival, products };
  Kind kind = Kind::none;
  bool by_loader = false;  ///< else by computing threads
  int nth = 0;
};

class EmulatedHopper {
 public:
  EmulatedHopper(int shared_bytes, std::uint64_t seed, HopperFault fault = {});

  unsigned char* shared() { return reinterpret_cast<unsigned char*>(shared_.data()); }

  /// Runs a block to its end. @throws std::runtime_error where its threads cannot all end
  void run(const std::function<void(const HopperThread&)>& body);

 private:
  friend class HopperThread;
  static constexpr int kThreads = kernels::sm90::kThreads;
  static constexpr int kWarpgroup = kernels::sm90::kWarpgroup;
  static constexpr int kLanes = 32;

  struct alignas(1024) Line {
    unsigned char bytes[1024];
  };
  struct BarrierState {
    int arrivals = 0;  ///< of a phase
    int missing = 0;
    int bytes = 0;  ///< that are still to come
    int phase = 0;
    std::vector<int> waiting;
  };
  struct NamedBarrier {
    int arrived = 0;
    std::vector<int> waiting;
  };
  struct Number {
    float* to = nullptr;
    const float* from = nullptr;
    bool inside = false;
  };
  /// One instruction of a warpgroup; pointers lead to its threads' stacks.
  struct Product {
    int tiles = 0;
    int group = 0;  ///< as many as were committed before
    std::uint64_t left = 0;
    std::uint64_t right = 0;
    bool in_registers = false;
    bool add = false;
    float* sums[kWarpgroup] = {};
    const unsigned* registers[kWarpgroup] = {};
  };
  struct Warpgroup {
    int asking = 0;
    Product next;
    std::vector<Product> issued;  ///< not executed yet, in order
  };
  struct Thread {
    int committed = 0;
    int counts[4] = {};  ///< of every kind of fault
    std::vector<Number> numbers;
    float value = 0;  ///< what it gives to its warp
    int bits = 0;
    int* counter = nullptr;
  };

  bool left_out(HopperFault::Kind kind);
  Thread& running() { return threads_[static_cast<std::size_t>(fibers_.running())]; }
  BarrierState& state(std::uint64_t* barrier);
  void settle(BarrierState& barrier);
  void meet(NamedBarrier& barrier, int threads, bool stay = true);
  void later(std::function<void()> happening);
  bool something_happens();
  void copy(unsigned char* panel, const kernels::sm90::MappedRows& rows, int column, int head,
            int row);
  void execute(Product& product);
  void execute_groups(int warpgroup, int groups);
  float element(std::uint64_t descriptor, int row, int depth, bool depth_is_rows) const;

  int bytes_;
  HopperFault fault_;
  std::vector<Line> shared_;
  Fibers fibers_;
  std::vector<Thread> threads_;
  std::vector<Warpgroup> warpgroups_;
  std::map<std::uint64_t*, BarrierState> barriers_;
  std::map<int, NamedBarrier> named_;
  std::vector<NamedBarrier> warps_;
  std::vector<std::function<void()>> pending_;  ///< may happen at any time, in any order
};

}  // namespace cadenza::testing
