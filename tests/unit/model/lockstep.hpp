// SPDX-License-Identifier: Apache-2.0
// Tensor groups inside a test: one thread per rank, of which one runs at a time, so that kernels of
// one process never meet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cadenza/model/llama.hpp"
#include "unit/model/support.hpp"

namespace cadenza::model::test {

/// Where the ranks of a group wait for each other.
class Rendezvous {
 public:
  explicit Rendezvous(int size)
      : inputs_(static_cast<std::size_t>(size)), outputs_(inputs_.size()) {}

  /// Runs `rank_main(rank)` for every rank. @throws what a rank threw
  void run(const std::function<void(int)>& rank_main) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([this, rank, &rank_main] {
        mutex_.lock();  // held but for waiting
        try {
          rank_main(rank);
        } catch (...) {
          if (!failure_) failure_ = std::current_exception();
          everyone_.notify_all();
        }
        mutex_.unlock();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  int size() const { return static_cast<int>(inputs_.size()); }

  /// The last rank to arrive computes all outputs from all inputs.
  using Combine = std::function<void(const std::vector<const void*>&, const std::vector<void*>&)>;
  void meet(int rank, const void* input, void* output, const Combine& combine) {
    inputs_[static_cast<std::size_t>(rank)] = input;
    outputs_[static_cast<std::size_t>(rank)] = output;
    if (++arrived_ == size()) {
      combine(inputs_, outputs_);
      arrived_ = 0;
      ++round_;
      everyone_.notify_all();
      return;
    }
    const std::int64_t round = round_;
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    const bool met = everyone_.wait_for(lock, std::chrono::minutes(5),
                                        [&] { return round_ > round || failure_; });
    lock.release();
    if (!met || round_ == round) throw std::runtime_error("a rank did not come to a collective");
  }

 private:
  std::mutex mutex_;
  std::condition_variable everyone_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  int arrived_ = 0;
  std::int64_t round_ = 0;
  std::exception_ptr failure_;
};

/// One rank's view of a meeting; sums in rank order.
template <typename Sum>
class LockstepGroup final : public TensorGroup<Sum> {
 public:
  LockstepGroup(Rendezvous& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.size() != mine.size() * static_cast<std::size_t>(size())) {
      throw std::logic_error("all_gather: sizes do not fit");
    }
    meeting_.meet(rank_, mine.data(), all.data(), [&](const auto& inputs, const auto& outputs) {
      for (void* output : outputs) {
        for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
          const auto* from = static_cast<const std::byte*>(inputs[rank]);
          copy_bytes(from, mine.size(), static_cast<std::byte*>(output) + rank * mine.size());
        }
      }
    });
  }

  void reduce_scatter(std::span<const Sum> all, std::span<Sum> mine) override {
    if (all.size() != mine.size() * static_cast<std::size_t>(size())) {
      throw std::logic_error("reduce_scatter: sizes do not fit");
    }
    meeting_.meet(rank_, all.data(), mine.data(), [&](const auto& inputs, const auto& outputs) {
      const Vector sums = reduce(inputs, all.size(), std::plus<>());
      for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
        const auto first = sums.begin() + static_cast<std::ptrdiff_t>(rank * mine.size());
        write_rows(Vector(first, first + static_cast<std::ptrdiff_t>(mine.size())),
                   static_cast<Sum*>(outputs[rank]));
      }
    });
  }

  void all_reduce_sum(std::span<Sum> values) override { all_reduce(values, std::plus<>()); }
  void all_reduce_max(std::span<Sum> values) override {
    all_reduce(values, [](double a, double b) { return std::max(a, b); });
  }

 private:
  static void copy_bytes(const std::byte* from, std::size_t count, std::byte* to) {
    Kokkos::deep_copy(Rows<std::byte>(to, count), Rows<const std::byte>(from, count));
  }

  template <typename F>
  static Vector reduce(const std::vector<const void*>& inputs, std::size_t count, const F& f) {
    Vector result;
    for (const void* input : inputs) {
      const Vector values =
          read_rows(static_cast<const Sum*>(input), static_cast<std::int64_t>(count));
      if (result.empty()) {
        result = values;
        continue;
      }
      for (std::size_t i = 0; i < count; ++i) result[i] = f(result[i], values[i]);
    }
    return result;
  }

  template <typename F>
  void all_reduce(std::span<Sum> values, const F& f) {
    meeting_.meet(rank_, values.data(), values.data(),
                  [&](const auto& inputs, const auto& outputs) {
                    const Vector result = reduce(inputs, values.size(), f);
                    for (void* output : outputs) write_rows(result, static_cast<Sum*>(output));
                  });
  }

  Rendezvous& meeting_;
  int rank_;
};

}  // namespace cadenza::model::test
