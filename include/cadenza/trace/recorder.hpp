// SPDX-License-Identifier: Apache-2.0
// Records events of a running step in a preallocated buffer, without allocating or writing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cadenza/trace/events/event.hpp"

namespace cadenza::trace {

class Recorder {
 public:
  /// @param capacity  events that are kept between two clears; dropped() counts further ones
  explicit Recorder(std::size_t capacity);

  /// The row of `name` in the string table, added on first use; not for timed code.
  /// @throws Error(usage) beyond 65536 names
  std::uint16_t intern(std::string_view name);

  void record(const Event& event) {
    if (events_.size() < events_.capacity()) {
      events_.push_back(event);
    } else {
      ++dropped_;
    }
  }
  void sample(const MemorySample& sample) {
    if (samples_.size() < samples_.capacity()) samples_.push_back(sample);
  }

  std::span<const Event> events() const { return events_; }
  std::span<const MemorySample> samples() const { return samples_; }
  const std::vector<std::string>& names() const { return names_; }
  std::uint64_t dropped() const { return dropped_; }
  void clear() {
    events_.clear();
    samples_.clear();
  }

 private:
  std::vector<Event> events_;
  std::vector<MemorySample> samples_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint16_t> ids_;
  std::uint64_t dropped_ = 0;
};

}  // namespace cadenza::trace
