// SPDX-License-Identifier: Apache-2.0
#include "cad_traffic.hpp"

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

Traffic::Traffic(const Workload& workload, const Homes& homes)
    : homes_(homes),
      query_bytes_(row_bytes(workload.shape, {Tensor::q, Tensor::o, Tensor::lse})),
      key_bytes_(row_bytes(workload.shape, {Tensor::k, Tensor::v})),
      present_(static_cast<std::size_t>(workload.ranks)) {
  for (const Home& home : workload.homes) bring(home.rank, home.document, 0);
}

std::int64_t Traffic::bytes(Rank to, int document, std::initializer_list<Range> queries) const {
  const std::map<int, std::int64_t>& there = present_[static_cast<std::size_t>(to)];
  const auto found = there.find(document);
  const std::int64_t brought = found == there.end() ? 0 : found->second;
  std::int64_t rows = 0;
  std::int64_t key_end = 0;
  for (Range q : queries) {
    if (q.empty()) continue;
    rows += q.size();
    key_end = std::max(key_end, q.end);
    if (found != there.end()) rows -= homes_.held(to, document, q);
  }
  std::int64_t keys = 0;
  if (key_end > brought) {
    keys = key_end - brought;
    if (found != there.end()) keys -= homes_.held(to, document, {brought, key_end});
  }
  return rows * query_bytes_ + keys * key_bytes_;
}

void Traffic::bring(Rank to, int document, std::int64_t key_end) {
  std::int64_t& end = present_[static_cast<std::size_t>(to)][document];
  end = std::max(end, key_end);
}

}  // namespace cadenza::plan
