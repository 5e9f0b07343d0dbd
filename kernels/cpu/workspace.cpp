// SPDX-License-Identifier: Apache-2.0
#include "workspace.hpp"

#include <new>

namespace cadenza::kernels::cpu {

void Workspace::require(int threads, std::int64_t words) {
  const auto count = static_cast<std::size_t>(threads);
  if (words <= words_ && count <= blocks_.size()) return;
  words_ = words > words_ ? words : words_;
  const std::size_t blocks = count > blocks_.size() ? count : blocks_.size();
  blocks_.clear();
  for (std::size_t i = 0; i < blocks; ++i) {
    constexpr std::size_t kPage = 4096;
    const std::size_t bytes =
        (static_cast<std::size_t>(words_) * sizeof(float) + kPage - 1) / kPage * kPage;
    auto* memory = static_cast<float*>(std::aligned_alloc(kPage, bytes));
    if (memory == nullptr) throw std::bad_alloc();
    blocks_.emplace_back(memory);
  }
}

Workspace& Workspace::shared() {
  static Workspace workspace;
  return workspace;
}

}  // namespace cadenza::kernels::cpu
