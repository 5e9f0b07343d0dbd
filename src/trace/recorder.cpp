// SPDX-License-Identifier: Apache-2.0
#include "cadenza/trace/recorder.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "cadenza/base/error.hpp"

namespace cadenza::trace {
namespace {

/// Reserves room for `count` values and touches its pages: a first touch in timed code would cost
/// more than the recorded event.
template <typename T>
void preallocate(std::vector<T>& values, std::size_t count) {
  values.resize(count);
  values.clear();
}

}  // namespace

std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

std::int64_t process_started_ns() {
  std::string stat;
  std::getline(std::ifstream("/proc/self/stat"), stat);
  // The name of the program, field 2, may hold anything and ends at the last parenthesis.
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::int64_t ticks = 0;  // since the machine started, suspended or not
  if (!(fields >> ticks)) return -1;
  timespec since_start{};
  clock_gettime(CLOCK_BOOTTIME, &since_start);
  const double age = static_cast<double>(since_start.tv_sec) +
                     static_cast<double>(since_start.tv_nsec) * 1e-9 -
                     static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return now_ns() - static_cast<std::int64_t>(age * 1e9);
}

Recorder::Recorder(std::size_t capacity) {
  preallocate(events_, capacity);
  // Memory is sampled between phases, far less often than events are recorded.
  preallocate(samples_, capacity / 8 + 64);
}

std::uint16_t Recorder::intern(std::string_view name) {
  const auto [entry, added] = ids_.try_emplace(std::string(name), 0);
  if (!added) return entry->second;
  if (names_.size() > std::numeric_limits<std::uint16_t>::max()) {
    ids_.erase(entry);
    fail(ExitCode::usage, "trace: more than {} different event names; '{}' is one too many",
         names_.size(), name);
  }
  entry->second = static_cast<std::uint16_t>(names_.size());
  names_.emplace_back(name);
  return entry->second;
}

}  // namespace cadenza::trace
