// SPDX-License-Identifier: Apache-2.0
#include "comm/hang.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace cadenza::comm {
namespace {

constexpr std::size_t kNamed = 8;  // ranks, and groups of them: more are counted

/// "0, 1, 3" or "0, 1, ... (500 ranks)".
std::string list_of(const std::vector<std::size_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() <= kNamed ? text : text + fmt::format(", ... ({} ranks)", ranks.size());
}

std::string silent_ranks(std::span<const HungRank> ranks) {
  std::string text;
  std::size_t silent = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].answers) continue;
    if (++silent > kNamed) continue;
    text += fmt::format("{}rank {} (host {}, process {})", silent == 1 ? "" : ", ", rank,
                        ranks[rank].host, ranks[rank].pid);
  }
  if (silent == 0) return "every rank answers";
  if (silent > kNamed) text += fmt::format(", ... ({} ranks)", silent);
  return text + (silent == 1 ? " does not answer" : " do not answer");
}

}  // namespace

std::string describe_hang(double seconds, std::span<const HungRank> ranks) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> waiting;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].answers) continue;
    const std::string& what = ranks[rank].waits_for;
    auto group = std::ranges::find(waiting, what, &decltype(waiting)::value_type::first);
    if (group == waiting.end()) group = waiting.insert(group, {what, {}});
    group->second.push_back(rank);
  }
  std::string text = fmt::format("no operation completed for {:g} s (run.timeout): {}", seconds,
                                 silent_ranks(ranks));
  for (std::size_t i = 0; i < std::min(waiting.size(), kNamed); ++i) {
    const auto& [what, group] = waiting[i];
    text += fmt::format("; rank {} {} for {}", list_of(group), group.size() == 1 ? "waits" : "wait",
                        what);
  }
  return text + (waiting.size() > kNamed ? "; ..." : "");
}

}  // namespace cadenza::comm
