// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

namespace cadenza::kernels::sm90 {
namespace {

/// Returns rows [first, first + rows) of an array [rows, heads, head_dim].
MappedRows part(const Bits* array, int heads, int head_dim, std::int64_t first, std::int64_t rows,
                int tile) {
  return {array + first * heads * head_dim, rows, heads, head_dim, tile};
}

/// Appends the maps of an entry, in the order of EntryMap.
void add_entry(const Entry& entry, const Call& call, Pass pass, int head_dim,
               std::vector<MappedRows>& to) {
  const Keys& keys = call.keys[static_cast<std::size_t>(entry.keys)];
  for (const Bits* array : {keys.k, keys.v}) {
    to.push_back(part(array, keys.heads, head_dim, entry.k_begin - keys.begin,
                      entry.k_end - entry.k_begin, kKeys));
  }
  const Queries& queries = call.queries[static_cast<std::size_t>(entry.queries)];
  const Rotation& rotation = call.rotations[static_cast<std::size_t>(entry.rotation)];
  for (const Bits* array : {static_cast<const Bits*>(rotation.rotated), queries.dout}) {
    if (pass == Pass::forward) {
      to.emplace_back();
      continue;
    }
    to.push_back(part(array, queries.heads, head_dim, entry.q_begin - queries.begin,
                      entry.q_end - entry.q_begin, kQueries));
  }
}

}  // namespace

CallRows rows_of(const Call& call, const TaskList<bfloat16>& list, Pass pass, int head_dim) {
  CallRows rows;
  for (const Entry& entry : call.entries) add_entry(entry, call, pass, head_dim, rows.entries);
  for (const Rotation& rotation : call.rotations) {
    const int heads = call.queries[static_cast<std::size_t>(rotation.queries)].heads;
    rows.rotations.push_back(
        part(rotation.rotated, heads, head_dim, rotation.begin, rotation.rows, kUnitRows));
  }
  if (pass == Pass::forward) return rows;
  for (std::size_t i = 0; i < call.queries.size(); ++i) {
    const Queries& of = call.queries[i];
    rows.dout.push_back(
        part(of.dout, of.heads, head_dim, 0, list.queries[i].tokens.size(), kUnitRows));
  }
  for (std::size_t i = 0; i < call.keys.size(); ++i) {
    const Keys& of = call.keys[i];
    for (const Bits* array : {of.k, of.v}) {
      rows.keys.push_back(
          part(array, of.heads, head_dim, 0, list.keys[i].tokens.size(), kUnitRows));
    }
  }
  return rows;
}

std::vector<TensorMap> encoded(const std::vector<MappedRows>& rows,
                               TensorMap (*encode)(const MappedRows&)) {
  std::vector<TensorMap> maps;
  maps.reserve(rows.size());
  for (const MappedRows& each : rows) {
    maps.push_back(each.rows > 0 ? encode(each) : TensorMap{});
  }
  return maps;
}

}  // namespace cadenza::kernels::sm90
