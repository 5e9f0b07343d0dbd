// SPDX-License-Identifier: Apache-2.0
// Device memory that waits in host memory while it is not needed: copied out and back beside the
// stream. Where device memory is the host's, it waits in a file without a name, so that it takes no
// memory of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cadenza {

class HostStore {
 public:
  using Arrays = std::vector<std::span<std::byte>>;

  HostStore();
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  /// Makes room for `bytes` in every place. What was put there is lost where that is more.
  void reserve(std::int64_t bytes);

  /// Starts to copy arrays, together at most the reserved bytes, out after all earlier work on the
  /// stream, or back. Copies follow one another. Until wait(slot), no work may write to arrays that
  /// are put, or touch those that are got.
  /// @throws Error(data) from wait(), if the file cannot be written or read
  void put(std::int64_t place, int slot, const Arrays& arrays);
  void get(std::int64_t place, int slot, const Arrays& arrays);
  /// Lets later work on the stream use the arrays of a slot.
  void wait(int slot);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cadenza
