// SPDX-License-Identifier: Apache-2.0
#include "plan/cad/residency.hpp"

#include <algorithm>

#include "cadenza/base/at.hpp"

namespace cadenza::plan {
namespace {

std::int64_t bytes_of(const AttentionShape& shape, std::initializer_list<Tensor> tensors) {
  std::int64_t bytes = 0;
  for (Tensor what : tensors) {
    const Range heads{0, is_key_side(what) ? shape.kv_heads : shape.heads};
    bytes += move_bytes(shape, what, {0, 1}, heads);
  }
  return bytes;
}

}  // namespace

Residency::Residency(const Workload& workload, const Homes& homes, bool rings)
    : workload_(workload),
      homes_(homes),
      query_bytes_(bytes_of(workload.shape, {Tensor::q})),
      result_bytes_(bytes_of(workload.shape, {Tensor::o, Tensor::lse})),
      key_bytes_(bytes_of(workload.shape, {Tensor::k, Tensor::v})),
      present_(static_cast<std::size_t>(workload.ranks)) {
  for (std::size_t document = 0; document < workload.lengths.size(); ++document) {
    const int d = static_cast<int>(document);
    for (const Home& home : homes.of(d)) brought(home.rank, d);
    if (!rings || homes.of(d).size() == 1) continue;
    for (const Home& home : homes.of(d)) bring(home.rank, d, {home.tokens});
  }
}

const Residency::Brought* Residency::find(Rank rank, int document) const {
  const std::vector<Brought>& there = present_[at(rank)];
  const auto found = std::ranges::lower_bound(there, document, {}, &Brought::document);
  return found != there.end() && found->document == document ? &*found : nullptr;
}

Residency::Brought& Residency::brought(Rank rank, int document) {
  std::vector<Brought>& there = present_[at(rank)];
  const auto place = std::ranges::lower_bound(there, document, {}, &Brought::document);
  if (place != there.end() && place->document == document) return *place;
  return *there.insert(place, {document, {}});
}

std::int64_t Residency::missing(Rank to, const Brought& there, Range keys) const {
  std::int64_t count = 0;
  for_each_gap(there.keys, keys,
               [&](Range gap) { count += gap.size() - homes_.held(to, there.document, gap); });
  return count;
}

std::int64_t Residency::bytes(Rank to, int document, std::initializer_list<Range> queries) const {
  const Brought* there = find(to, document);
  const Mask mask = workload_.mask_of(document);
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  std::int64_t counted = 0;  // end of the keys that earlier queries see
  for (Range q : queries) {
    if (q.empty()) continue;
    rows += q.size();
    if (there != nullptr) rows -= homes_.held(to, document, q);
    mask.for_each_key_range(q, [&](Range seen) {
      seen.begin = std::max(seen.begin, counted);
      counted = std::max(counted, seen.end);
      if (seen.empty()) return;
      keys += there != nullptr ? missing(to, *there, seen) : seen.size();
    });
  }
  return rows * row_bytes() + keys * key_bytes_;
}

void Residency::bring(Rank to, int document, std::initializer_list<Range> queries) {
  Brought& there = brought(to, document);
  const Mask mask = workload_.mask_of(document);
  for (Range q : queries) {
    mask.for_each_key_range(q, [&](Range keys) { add(there.keys, keys); });
  }
}

}  // namespace cadenza::plan
