// SPDX-License-Identifier: Apache-2.0
#include "residency.hpp"

#include <algorithm>

namespace cadenza::plan {
namespace {

std::int64_t row_bytes(const AttentionShape& shape, std::initializer_list<Tensor> tensors) {
  std::int64_t bytes = 0;
  for (Tensor what : tensors) {
    const Range heads{0, is_key_side(what) ? shape.kv_heads : shape.heads};
    bytes += move_bytes(shape, what, {0, 1}, heads);
  }
  return bytes;
}

}  // namespace

Residency::Residency(const Workload& workload, const Homes& homes)
    : homes_(homes),
      query_bytes_(row_bytes(workload.shape, {Tensor::q})),
      result_bytes_(row_bytes(workload.shape, {Tensor::o, Tensor::lse})),
      key_bytes_(row_bytes(workload.shape, {Tensor::k, Tensor::v})),
      present_(static_cast<std::size_t>(workload.ranks)) {
  for (std::size_t document = 0; document < workload.lengths.size(); ++document) {
    const int d = static_cast<int>(document);
    for (const Home& home : homes.of(d)) bring(home.rank, d, 0);
  }
}

const Residency::Brought* Residency::find(Rank rank, int document) const {
  const std::vector<Brought>& there = present_[static_cast<std::size_t>(rank)];
  const auto found = std::lower_bound(there.begin(), there.end(), Brought{document, 0});
  return found != there.end() && found->first == document ? &*found : nullptr;
}

std::int64_t Residency::bytes(Rank to, int document, std::initializer_list<Range> queries) const {
  const Brought* there = find(to, document);
  const std::int64_t brought = there == nullptr ? 0 : there->second;
  std::int64_t rows = 0;
  std::int64_t key_end = 0;
  for (Range q : queries) {
    if (q.empty()) continue;
    rows += q.size();
    key_end = std::max(key_end, q.end);
    if (there != nullptr) rows -= homes_.held(to, document, q);
  }
  std::int64_t keys = 0;
  if (key_end > brought) {
    keys = key_end - brought;
    if (there != nullptr) keys -= homes_.held(to, document, {brought, key_end});
  }
  return rows * query_bytes() + keys * key_bytes_;
}

void Residency::bring(Rank to, int document, std::int64_t key_end) {
  std::vector<Brought>& there = present_[static_cast<std::size_t>(to)];
  auto place = std::lower_bound(there.begin(), there.end(), Brought{document, 0});
  if (place == there.end() || place->first != document) {
    place = there.insert(place, {document, 0});
  }
  place->second = std::max(place->second, key_end);
}

}  // namespace cadenza::plan
