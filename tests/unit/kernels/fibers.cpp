// SPDX-License-Identifier: Apache-2.0
#include <Kokkos_Core.hpp>
#ifndef KOKKOS_ENABLE_CUDA

#include "unit/kernels/fibers.hpp"

#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace cadenza::testing {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 16;

/// The fibers that run; contexts start without arguments.
Fibers* current = nullptr;

/// Tells the address sanitizer that the stack changes.
class StackChange {
 public:
  StackChange([[maybe_unused]] const void* stack, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&kept_, stack, bytes);
#endif
  }
  void back() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(kept_, nullptr, nullptr);
#endif
  }

 private:
  [[maybe_unused]] void* kept_ = nullptr;
};

#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack = nullptr;
std::size_t scheduler_bytes = 0;
#else
constexpr const void* scheduler_stack = nullptr;
constexpr std::size_t scheduler_bytes = 0;
#endif

}  // namespace

Fibers::Fibers(int count, int group, std::uint64_t seed)
    : group_(static_cast<std::size_t>(group)),
      random_(seed),
      fibers_(static_cast<std::size_t>(count)),
      ready_((fibers_.size() + group_ - 1) / group_) {
  for (Fiber& fiber : fibers_) fiber.stack = std::make_unique<char[]>(kStackBytes);
}

void Fibers::run(const std::function<void(int)>& body, const std::function<bool()>& idle) {
  body_ = &body;
  current = this;
  failure_ = nullptr;
  for (auto& group : ready_) group.clear();
  for (std::size_t index = 0; index < fibers_.size(); ++index) {
    prepare(fibers_[index]);
    make_ready(static_cast<int>(index));
  }
  while (failure_ == nullptr) {
    const int next = take_ready();
    if (next >= 0) {
      resume(next);
    } else if (!idle()) {
      break;
    }
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  for (const Fiber& fiber : fibers_) {
    if (!fiber.ended) throw std::runtime_error("threads of a block wait for ever");
  }
}

void Fibers::make_ready(int index) {
  ready_[static_cast<std::size_t>(index) / group_].push_back(index);
}

void Fibers::prepare(Fiber& fiber) {
  fiber.ended = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = &scheduler_;
  makecontext(&fiber.context, &Fibers::start, 0);
}

int Fibers::take_ready() {
  constexpr unsigned kTurns = 512;  // that a group is favoured, on average
  if (random_() % kTurns == 0) favoured_ = random_() % ready_.size();
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    std::vector<int>& group = ready_[(favoured_ + i) % ready_.size()];
    if (group.empty()) continue;
    const std::size_t at = random_() % group.size();
    const int next = group[at];
    group[at] = group.back();
    group.pop_back();
    return next;
  }
  return -1;
}

void Fibers::resume(int index) {
  running_ = index;
  Fiber& fiber = fibers_[static_cast<std::size_t>(index)];
  StackChange change(fiber.stack.get(), kStackBytes);
  swapcontext(&scheduler_, &fiber.context);
  change.back();
}

void Fibers::stop() {
  Fiber& fiber = fibers_[static_cast<std::size_t>(running_)];
  StackChange change(scheduler_stack, scheduler_bytes);
  swapcontext(&fiber.context, &scheduler_);
  change.back();
}

void Fibers::start() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_bytes);
#endif
  Fibers& all = *current;
  const int index = all.running_;
  try {
    (*all.body_)(index);
  } catch (...) {
    all.failure_ = std::current_exception();
  }
  all.fibers_[static_cast<std::size_t>(index)].ended = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack, scheduler_bytes);
#endif
}

}  // namespace cadenza::testing

#endif
