// SPDX-License-Identifier: Apache-2.0
// When the device's stream gets where, without waiting for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "cadenza/kernels/device.hpp"

namespace cadenza {

/// Marks on the stream, each with the time at which all that was put there before it has ended.
class StreamTimes {
 public:
  /// @param now_ns  the host's clock, which times are given in
  explicit StreamTimes(std::int64_t (*now_ns)());
  ~StreamTimes();
  StreamTimes(const StreamTimes&) = delete;
  StreamTimes& operator=(const StreamTimes&) = delete;

  /// Puts a mark on the stream. @returns its number, counted from the last clear()
  std::size_t mark();
  /// Time of a mark, ns. Only after a fence().
  std::int64_t at(std::size_t mark) const;
  /// Forgets all marks. Only after a fence().
  void clear();

 private:
  struct Events;
  std::int64_t (*now_ns_)();
  std::size_t marks_ = 0;
  std::deque<std::int64_t> times_;  ///< of a stream of the host
  std::unique_ptr<Events> events_;  ///< of a GPU's
};

}  // namespace cadenza
