// SPDX-License-Identifier: Apache-2.0
// What sparse attention misses, by the distance from a query to its keys.
#pragma once

#include <array>
#include <cstdint>

namespace cadenza {

/// How much of their attention (the softmax over all keys) sampled queries kept, and how many keys
/// no query sees, by the distance i - j of query and key. Sums of integers: they do not depend on
/// the order in which ranks add them.
struct Recall {
  /// Classes of distances begin here, in tokens; each ends where the next begins.
  static constexpr std::array<std::int64_t, 5> kFrom = {0, 1024, 4096, 16384, 32768};
  /// The attention 1 of a query as an integer.
  static constexpr std::int64_t kUnit = std::int64_t{1} << 30;

  struct Distance {
    std::int64_t kept = 0;       ///< attention to kept keys of this class, in units of 1 / kUnit
    std::int64_t attention = 0;  ///< attention to all keys of this class
    std::int64_t keys = 0;       ///< keys, by head, that have queries so far away or further
    std::int64_t unseen = 0;     ///< those of them that none of these queries sees

    double share() const { return static_cast<double>(kept) / static_cast<double>(attention); }
  };
  std::array<Distance, kFrom.size()> distances;

  void add(const Recall& other) {
    for (std::size_t i = 0; i < distances.size(); ++i) {
      distances[i].kept += other.distances[i].kept;
      distances[i].attention += other.distances[i].attention;
      distances[i].keys += other.distances[i].keys;
      distances[i].unseen += other.distances[i].unseen;
    }
  }
  static std::size_t class_of(std::int64_t distance) {
    std::size_t found = kFrom.size() - 1;
    while (kFrom[found] > distance) --found;
    return found;
  }
  /// Sums over all distances; nothing was sampled where its `attention` is 0.
  Distance total() const {
    Distance sum;
    for (const Distance& each : distances) {
      sum.kept += each.kept;
      sum.attention += each.attention;
    }
    sum.keys = distances.front().keys;
    sum.unseen = distances.front().unseen;
    return sum;
  }
};

}  // namespace cadenza
