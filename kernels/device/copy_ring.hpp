// SPDX-License-Identifier: Apache-2.0
// Pinned memory through which arrays of a call go to the device. A copy of more than 64 KiB from
// ordinary memory waits, unwatched, until the stream has come to it, so the host could not run
// ahead of a call with many tasks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace cadenza::kernels::device {

/// Two halves in turn: one is filled while copies from the other may still run. Stream has
/// copy(to, from, bytes), mark(half), and wait(half), which returns when all that the stream had
/// before that half's last mark has run (at once where it has none).
template <typename Stream>
class CopyRing {
 public:
  CopyRing(std::span<std::byte> memory, Stream stream)
      : half_(memory.size() / 2), memory_(memory), stream_(std::move(stream)) {}

  /// Puts a copy on the stream. `from` may be destroyed when the call returns.
  void copy(std::byte* to, std::span<const std::byte> from) {
    while (!from.empty()) {
      if (used_ == half_) turn();
      const std::size_t part = std::min(from.size(), half_ - used_);
      std::byte* const place = memory_.data() + (second_ ? half_ : 0) + used_;
      std::memcpy(place, from.data(), part);
      stream_.copy(to, place, part);
      to += part;
      from = from.subspan(part);
      used_ += part;
    }
  }

 private:
  void turn() {
    stream_.mark(second_);
    second_ = !second_;
    stream_.wait(second_);
    used_ = 0;
  }

  std::size_t half_;
  std::span<std::byte> memory_;
  Stream stream_;
  bool second_ = false;
  std::size_t used_ = 0;  ///< of the half that is filled
};

}  // namespace cadenza::kernels::device
