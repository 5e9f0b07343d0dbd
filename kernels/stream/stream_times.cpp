// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/stream_times.hpp"

#include <vector>

#include "cadenza/base/error.hpp"
#ifdef KOKKOS_ENABLE_CUDA
#include "../device/check.hpp"
#endif

namespace cadenza {

#ifdef KOKKOS_ENABLE_CUDA

namespace {

void check_times(cudaError_t status) {
  kernels::device::check(status, "times of the device's stream");
}

}  // namespace

/// Times of CUDA events are relative to each other; for the first one the host's time is known too.
struct StreamTimes::Events {
  std::vector<cudaEvent_t> all;  ///< the first, then one for each mark
  std::int64_t first_ns = 0;

  ~Events() {
    for (cudaEvent_t event : all) cudaEventDestroy(event);
  }
  cudaEvent_t record(std::size_t index) {
    if (index == all.size()) {
      cudaEvent_t event = nullptr;
      check_times(cudaEventCreate(&event));
      all.push_back(event);
    }
    check_times(cudaEventRecord(all[index], Kokkos::Cuda().cuda_stream()));
    return all[index];
  }
};

std::size_t StreamTimes::mark() {
  if (marks_ == 0) {  // on an empty stream, the event is between two reads of the host's clock
    fence();
    const std::int64_t before = now_ns_();
    check_times(cudaEventSynchronize(events_->record(0)));
    events_->first_ns = before + (now_ns_() - before) / 2;
  }
  events_->record(marks_ + 1);
  return marks_++;
}

std::int64_t StreamTimes::at(std::size_t mark) const {
  float milliseconds = 0;
  check_times(cudaEventElapsedTime(&milliseconds, events_->all[0], events_->all[mark + 1]));
  return events_->first_ns + static_cast<std::int64_t>(1e6 * static_cast<double>(milliseconds));
}

#else

struct StreamTimes::Events {};

/// A deque does not move its elements: the stream writes them when it gets there.
std::size_t StreamTimes::mark() {
  if (marks_ == times_.size()) times_.push_back(0);
  enqueue([now = now_ns_](std::int64_t* time) { *time = now(); }, &times_[marks_]);
  return marks_++;
}

std::int64_t StreamTimes::at(std::size_t mark) const {
  return times_[mark];
}

#endif

StreamTimes::StreamTimes(std::int64_t (*now_ns)())
    : now_ns_(now_ns), events_(std::make_unique<Events>()) {}

StreamTimes::~StreamTimes() {
  fence();  // the stream may still write to marks
}

void StreamTimes::clear() {
  marks_ = 0;
}

}  // namespace cadenza
