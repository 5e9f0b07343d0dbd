// SPDX-License-Identifier: Apache-2.0
// Watched fences: the host polls the stream instead of blocking. Marks on the stream split a long
// wait into short ones, so that a device that makes progress is never mistaken for a hanging one.
#include <deque>
#include <memory>
#include <thread>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#ifdef KOKKOS_ENABLE_CUDA
#include "../device/check.hpp"
#endif

namespace cadenza {
namespace {

/// Kernels and calls between two marks: a mark costs the host too much time for one per kernel.
constexpr int kWorkPerMark = 16;

#ifdef KOKKOS_ENABLE_CUDA

void check(cudaError_t status) {
  kernels::device::check(status, "the device");
}

bool has_ended(cudaError_t status) {
  return kernels::device::has_ended(status, "the device");
}

class Mark {
 public:
  Mark() {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    check(cudaEventRecord(event_, Device().cuda_stream()));
  }
  ~Mark() { cudaEventDestroy(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  bool passed() const { return has_ended(cudaEventQuery(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

bool stream_has_ended() {
  return has_ended(cudaStreamQuery(Device().cuda_stream()));
}

void end_stream() {
  Device().fence();
}

#elif defined(CADENZA_SEPARATE_MEMORY)

/// Polls the stream of this build, which makes it run its next piece of work.
bool stream_has_ended() {
  return !separate_memory::run_next();
}

void end_stream() {
  separate_memory::run_deferred();
}

class Mark {
 public:
  Mark() {
    separate_memory::defer([passed = passed_] { *passed = true; });
  }
  /// Whether the mark has passed. If a piece of work asks, nothing else is left before it ends
  /// itself.
  bool passed() const { return *passed_ || stream_has_ended() || *passed_; }

 private:
  std::shared_ptr<bool> passed_ = std::make_shared<bool>(false);
};

#else  // the stream is the host itself

struct Mark {
  static bool passed() { return true; }
};
bool stream_has_ended() {
  return true;
}
void end_stream() {}

#endif

struct Watched {
  DeviceWait wait;
  std::thread::id thread;  ///< that made the scope; other threads wait without it
  std::deque<Mark> marks;  ///< those that may not have been passed
  int work = 0;            ///< since the last mark
  bool waiting = false;

  bool is_mine() const { return wait && thread == std::this_thread::get_id(); }
};

Watched& watched() {
  static Watched state;
  return state;
}

/// Waits for the stream through the scope's function, if there is a scope.
void watch_stream() {
  Watched& now = watched();
  if (!now.is_mine() || now.waiting) return;
  struct Waiting {
    explicit Waiting(bool& waiting) : waiting_(waiting) { waiting_ = true; }
    ~Waiting() { waiting_ = false; }
    bool& waiting_;
  } const waiting(now.waiting);
  for (; !now.marks.empty(); now.marks.pop_front()) {
    now.wait([&] { return now.marks.front().passed(); });
  }
  now.wait(stream_has_ended);
}

#ifdef KOKKOS_ENABLE_CUDA
void before_fence(const char* /*name*/, std::uint32_t /*device*/, std::uint64_t* /*handle*/) {
  watch_stream();
}
#endif

/// Makes Kokkos' own fences watched too.
void watch_kokkos([[maybe_unused]] bool on) {
#ifdef KOKKOS_ENABLE_CUDA
  Kokkos::Tools::Experimental::set_begin_fence_callback(on ? before_fence : nullptr);
#endif
}

}  // namespace

DeviceWaitScope::DeviceWaitScope(DeviceWait wait) {
  watched().wait = std::move(wait);
  watched().thread = std::this_thread::get_id();
  watch_kokkos(true);
}

DeviceWaitScope::~DeviceWaitScope() {
  watch_kokkos(false);
  watched().wait = {};
  watched().marks.clear();
}

void count_work() {
  Watched& now = watched();
  if (!now.is_mine() || now.waiting || ++now.work < kWorkPerMark) return;
  now.work = 0;
  now.marks.emplace_back();
}

void wait_for_device() {
  watch_stream();
  end_stream();
}

}  // namespace cadenza
