// SPDX-License-Identifier: Apache-2.0
// Times at which the device's stream passes marks, without waiting for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "cadenza/kernels/device.hpp"

namespace cadenza {

/// Marks on the stream, each with the time at which all earlier work on the stream has ended.
class StreamTimes {
 public:
  /// @param now_ns  the host's clock, in which times are given
  explicit StreamTimes(std::int64_t (*now_ns)());
  ~StreamTimes();
  StreamTimes(const StreamTimes&) = delete;
  StreamTimes& operator=(const StreamTimes&) = delete;

  /// Puts a mark on the stream. @returns its number, counted from the last clear()
  std::size_t mark();
  /// Time of a mark, ns. Call it only after a fence().
  std::int64_t at(std::size_t mark) const;
  /// Forgets all marks. Call it only after a fence().
  void clear();

 private:
  struct Events;
  std::int64_t (*now_ns_)();
  std::size_t marks_ = 0;
  std::deque<std::int64_t> times_;  ///< for a stream on the host
  std::unique_ptr<Events> events_;  ///< for a GPU's stream
};

}  // namespace cadenza
