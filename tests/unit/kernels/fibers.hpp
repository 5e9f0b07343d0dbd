// SPDX-License-Identifier: Apache-2.0
// Threads of a device's block as contexts of one host thread: they take turns in random order, some
// groups far ahead of others, and stop where a device's threads wait for each other.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace cadenza::testing {

class Fibers {
 public:
  /// `group`: fibers that are favoured together, a warp.
  Fibers(int count, int group, std::uint64_t seed);

  /// Runs body(index) in every fiber until all have ended. `idle` is called when none can run and
  /// says whether it made one ready. @throws std::runtime_error where they wait for ever, and what
  /// a body throws
  void run(const std::function<void(int)>& body, const std::function<bool()>& idle);

  // Called by the running fiber.
  int running() const { return running_; }
  void stop();  ///< until something makes it ready
  void make_ready(int index);
  std::uint64_t random() { return random_(); }

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool ended = false;
  };

  static void start();
  void prepare(Fiber& fiber);
  int take_ready();  ///< -1: all wait or have ended
  void resume(int index);

  std::size_t group_;
  std::mt19937_64 random_;
  std::vector<Fiber> fibers_;
  std::vector<std::vector<int>> ready_;  ///< fibers, by group
  std::size_t favoured_ = 0;             ///< group that runs ahead for a while
  int running_ = -1;
  const std::function<void(int)>* body_ = nullptr;
  ucontext_t scheduler_;
  std::exception_ptr failure_;
};

}  // namespace cadenza::testing
