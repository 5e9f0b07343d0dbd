// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/kernels_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <vector>

#include "cadenza/base/text.hpp"

namespace cadenza::app {

std::string describe_kernels(std::span<const std::string> kernels) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < kernels.size(); ++rank) {
    ranks_of[kernels[rank]].push_back(static_cast<int>(rank));
  }
  if (ranks_of.size() == 1) return kernels.front();
  std::vector<std::string> parts;
  for (const auto& [kernel, ranks] : ranks_of) {
    const char* plural = ranks.size() == 1 ? "" : "s";
    parts.push_back(fmt::format("{} on rank{} {}", kernel, plural, number_list(ranks)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace cadenza::app
