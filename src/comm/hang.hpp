// SPDX-License-Identifier: Apache-2.0
// What is said of a job in which nothing goes on any more.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace cadenza::comm {

/// One rank of it.
struct HungRank {
  bool answers = false;
  std::string host;       ///< of one that does not
  std::int64_t pid = 0;   ///< likewise
  std::string waits_for;  ///< of one that does
};

/// One line: who does not answer, and what the others wait for; ranks that wait for the same
/// together.
std::string describe_hang(double seconds, std::span<const HungRank> ranks);

}  // namespace cadenza::comm
