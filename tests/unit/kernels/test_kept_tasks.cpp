// SPDX-License-Identifier: Apache-2.0
// What kernels keep of a list between calls: nothing is made or copied twice, and what changes is
// seen.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "../../../kernels/device/kept_call.hpp"
#include "cadenza/kernels/attention.hpp"
#include "unit/kernels/device_data.hpp"

namespace cadenza::testing {
namespace {

std::int64_t allocations = 0;

void count_allocation(Kokkos::Tools::SpaceHandle, const char*, const void*, std::uint64_t) {
  ++allocations;
}

/// One document of 100 tokens, one head of one element: row r of O is the mean of what it sees.
class Rows {
 public:
  explicit Rows(double value)
      : zeros_(upload(std::vector<double>(100))),
        values_(upload(std::vector<double>(100, value))),
        out_(upload(std::vector<double>(100))),
        lse_(upload(std::vector<double>(100, -std::numeric_limits<double>::infinity()))) {}

  void name_in(kernels::TaskList<double>& list) const {
    list.queries = {{{0, 100}, zeros_.data(), out_.data(), lse_.data()}};
    list.keys = {{{0, 100}, zeros_.data(), values_.data()}};
  }
  std::vector<double> out() const { return download(out_); }

 private:
  Array<double> zeros_, values_, out_, lse_;
};

void attend(const kernels::TaskList<double>& list) {
  kernels::attention_forward({1, 1, 1}, {}, list);
  fence();
}

TEST(KeptTasks, PortableKernelsAllocateInTheFirstCallAlone) {
  namespace Tools = Kokkos::Tools::Experimental;
  const Rows first(1), second(2), third(3);
  kernels::TaskList<double> list;
  list.kernel = AttentionKernel::portable;
  list.tasks = {{{0, {0, 100}, {0, 100}, {0, 1}, Band::causal()}, 0, 0}};
  first.name_in(list);
  attend(list);
  EXPECT_THAT(first.out(), ::testing::Each(::testing::DoubleNear(1, 1e-12)));

  Tools::set_allocate_data_callback(count_allocation);
  allocations = 0;
  second.name_in(list);
  attend(list);
  EXPECT_EQ(allocations, 0);
  const Array<double> counted("counted", 1);
  EXPECT_EQ(allocations, 1);
  Tools::set_allocate_data_callback(nullptr);
  EXPECT_THAT(second.out(), ::testing::Each(::testing::DoubleNear(2, 1e-12)));

  third.name_in(list);
  list.tasks[0].task.q = {50, 100};
  attend(list);
  const std::vector<double> out = third.out();
  EXPECT_EQ(out[49], 0);
  EXPECT_NEAR(out[50], 3, 1e-12);
}

/// Memory of kernels that is the host's.
struct CountingMemory {
  int* copies = nullptr;

  template <typename T>
  using Array = std::vector<T>;
  template <typename T>
  Array<T> allocate(std::size_t count) const {
    return Array<T>(count);
  }
  template <typename T>
  void copy(Array<T>& to, const std::vector<T>& items) const {
    ++*copies;
    to = items;
  }
};

/// Rows that no one reads; their addresses are multiples of 16 bytes.
const bfloat16* rows_at(int place) {
  return reinterpret_cast<const bfloat16*>(static_cast<std::uintptr_t>(place) * 4096);
}

class KeptCall : public ::testing::Test {
 protected:
  KeptCall() {
    list_.queries = {{{0, 300}, rows_at(1)}, {{0, 300}, rows_at(2)}};
    list_.keys = {{{0, 300}, rows_at(3), rows_at(4)}};
    list_.tasks = {{{0, {0, 300}, {0, 300}, {0, 2}, Band::causal()}, 0, 0},
                   {{1, {0, 300}, {0, 300}, {0, 2}, Band::causal()}, 1, 0}};
  }

  /// A call of both passes; returns the number of arrays that it copied.
  int call() {
    copies_ = 0;
    auto& kept = kernels::kept_of<Kept>(list_, CountingMemory{&copies_});
    kept.take(shape_, {}, list_);
    kept.place_rotated(nullptr);
    forward_ = kept.problem(shape_, list_, kernels::Side::queries, 128);
    kept.problem(shape_, list_, kernels::Side::keys, 128);
    return copies_;
  }

  using Kept = kernels::device::KeptCall<CountingMemory>;
  AttentionShape shape_{2, 1, 64};
  kernels::TaskList<bfloat16> list_;
  kernels::device::PassProblem forward_;
  int copies_ = 0;
};

TEST_F(KeptCall, ASecondCallCopiesNothing) {
  EXPECT_EQ(call(), 8);  // queries, keys, rotations, entries, units and their order of both sides
  EXPECT_EQ(forward_.units, 12);
  EXPECT_EQ(call(), 0);
  EXPECT_EQ(forward_.units, 12);
}

TEST_F(KeptCall, OtherRowsAreCopiedAlone) {
  call();
  list_.keys[0].k = rows_at(5);
  EXPECT_EQ(call(), 1);
  EXPECT_EQ(forward_.problem.keys[0].k, reinterpret_cast<const kernels::device::Bits*>(rows_at(5)));
  list_.queries[1].q = rows_at(6);
  EXPECT_EQ(call(), 1);  // rotations have the pointer
  EXPECT_EQ(forward_.problem.rotations[1].rotated,
            reinterpret_cast<const kernels::device::Bits*>(rows_at(6)));
  float out = 0;
  list_.queries[1].out = &out;
  EXPECT_EQ(call(), 1);
  EXPECT_EQ(forward_.problem.queries[1].out, &out);
}

TEST_F(KeptCall, OtherTasksPlacesAndShapesAreSeen) {
  call();
  list_.tasks[1].task.q = {0, 100};
  EXPECT_GE(call(), 3);
  EXPECT_EQ(forward_.units, 8);
  EXPECT_EQ(forward_.problem.entries[1].q_end, 100);
  list_.queries[0].tokens = {0, 400};
  EXPECT_GE(call(), 2);
  EXPECT_EQ(forward_.units, 8);
  shape_.heads = 4;
  call();
  EXPECT_EQ(forward_.problem.queries[0].heads, 4);
}

TEST_F(KeptCall, ACopyOfAListThatChangesIsRight) {
  call();
  const kernels::TaskList<bfloat16> before = list_;
  list_.tasks.pop_back();
  call();
  EXPECT_EQ(forward_.units, 6);
  list_ = before;
  call();
  EXPECT_EQ(forward_.units, 12);
}

}  // namespace
}  // namespace cadenza::testing
