// SPDX-License-Identifier: Apache-2.0
// Pages for the arrays of SeparateMemory, which the host can touch only while the arena is open.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace cadenza::kernels::separate {

class Arena {
 public:
  /// The one of the process. It lives as long: Kokkos may release arrays after main().
  static Arena& shared();

  /// New memory, filled with bytes 0xff: NaN in every floating-point type, -1 in signed integers.
  /// @throws std::bad_alloc  when the reserved addresses are used up
  void* take(std::size_t bytes);
  /// Memory of take(bytes) again; another array may get it.
  void give(void* at, std::size_t bytes);

  /// Pairs nest.
  void open();
  void close();

 private:
  Arena();

  void protect();

  std::mutex mutex_;
  char* begin_ = nullptr;
  std::size_t used_ = 0;
  int opened_ = 0;
  std::map<std::size_t, std::vector<char*>> released_;  ///< by size, to be taken again
};

}  // namespace cadenza::kernels::separate
