// SPDX-License-Identifier: Apache-2.0
// Counts memory by kind, with high-water marks. Every large allocation of a run is entered in one
// ledger, so that traces say what the memory was for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace cadenza {

/// Kinds of memory, in the order of the trace's columns (docs/trace.md).
enum class MemoryKind : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  communication,
  attention,
  other,
};
inline constexpr int kMemoryKinds = 7;
inline constexpr std::array<std::string_view, kMemoryKinds> kMemoryKindNames = {
    "parameters", "gradients", "optimizer", "activations", "communication", "attention", "other"};

/// Bytes of cuBLAS' workspace: as much as it takes by itself on Hopper. We provide it, so that the
/// ledger can count it.
inline constexpr std::int64_t kProductWorkspace = std::int64_t{32} << 20;

/// Current and peak bytes of one rank, by kind. Not thread-safe: owned by the rank's main thread.
class MemoryLedger {
 public:
  void add(MemoryKind kind, std::int64_t bytes) {
    current_[index(kind)] += bytes;
    total_ += bytes;
    peak_[index(kind)] = std::max(peak_[index(kind)], current_[index(kind)]);
    peak_total_ = std::max(peak_total_, total_);
  }
  void remove(MemoryKind kind, std::int64_t bytes) { add(kind, -bytes); }

  std::int64_t current(MemoryKind kind) const { return current_[index(kind)]; }
  std::int64_t peak(MemoryKind kind) const { return peak_[index(kind)]; }
  std::int64_t total() const { return total_; }
  std::int64_t peak_total() const { return peak_total_; }

  /// Lowers the high-water marks to the present level, once per step.
  void reset_peaks() {
    peak_ = current_;
    peak_total_ = total_;
  }

 private:
  static constexpr std::size_t index(MemoryKind kind) { return static_cast<std::size_t>(kind); }
  std::array<std::int64_t, kMemoryKinds> current_{};
  std::array<std::int64_t, kMemoryKinds> peak_{};
  std::int64_t total_ = 0;
  std::int64_t peak_total_ = 0;
};

}  // namespace cadenza
