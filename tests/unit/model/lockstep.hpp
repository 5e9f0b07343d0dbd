// SPDX-License-Identifier: Apache-2.0
// Tensor groups inside a test: one thread per rank, of which one runs at a time, so that kernels of
// one process never meet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
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

  /// Keeps what arrives aside until the rank waits for it.
  void post(Collective what, int step, std::span<const std::byte> sent,
            std::span<std::byte> received) override {
    if (sent.size() != received.size()) throw std::logic_error("a step of two sizes");
    Arrival& arrival = arrivals_[{what, step}];
    if (!arrival.to.empty()) throw std::logic_error("a step is posted twice");
    arrival = {received, Array<std::byte>("arrival", received.size())};
    meeting_.meet(rank_, sent.data(), arrival.bytes.data(),
                  [&](const auto& inputs, const auto& outputs) {
                    const std::size_t ranks = inputs.size();
                    for (std::size_t from = 0; from < ranks; ++from) {
                      const std::size_t to = (from + static_cast<std::size_t>(step)) % ranks;
                      copy_bytes(static_cast<const std::byte*>(inputs[from]), sent.size(),
                                 static_cast<std::byte*>(outputs[to]));
                    }
                  });
  }

  void wait(Collective what, int step) override {
    Arrival& arrival = arrivals_.at({what, step});
    copy_bytes(arrival.bytes.data(), arrival.to.size(), arrival.to.data());
    arrivals_.erase({what, step});
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

  struct Arrival {
    std::span<std::byte> to;
    Array<std::byte> bytes;
  };
  Rendezvous& meeting_;
  int rank_;
  std::map<std::pair<Collective, int>, Arrival> arrivals_;
};

}  // namespace cadenza::model::test
