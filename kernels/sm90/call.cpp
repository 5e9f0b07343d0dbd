// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <algorithm>

namespace cadenza::kernels::sm90 {
namespace {

/// Maps arrays of rows [rows, heads, head_dim].
class Mapper {
 public:
  Mapper(int head_dim, TensorMap (*encode)(const MappedRows&))
      : head_dim_(head_dim), encode_(encode) {}

  /// Rows [first, first + rows) of an array.
  TensorMap operator()(const Bits* array, int heads, std::int64_t first, std::int64_t rows,
                       int tile) const {
    if (rows == 0) return {};  // nobody reads it
    return encode_({array + first * heads * head_dim_, rows, heads, head_dim_, tile});
  }

 private:
  int head_dim_;
  TensorMap (*encode_)(const MappedRows&);
};

EntryMaps maps_of(const Entry& entry, const mma::Call& call, Pass pass, const Mapper& map) {
  EntryMaps maps;
  const Keys& keys = call.keys[static_cast<std::size_t>(entry.keys)];
  const std::int64_t key_rows = entry.k_end - entry.k_begin;
  maps.k = map(keys.k, keys.heads, entry.k_begin - keys.begin, key_rows, kKeys);
  maps.v = map(keys.v, keys.heads, entry.k_begin - keys.begin, key_rows, kKeys);
  if (pass == Pass::forward) return maps;
  const Queries& queries = call.queries[static_cast<std::size_t>(entry.queries)];
  const Rotation& rotation = call.rotations[static_cast<std::size_t>(entry.rotation)];
  const std::int64_t first = entry.q_begin - queries.begin;
  const std::int64_t query_rows = entry.q_end - entry.q_begin;
  maps.q = map(rotation.rotated, queries.heads, first, query_rows, kQueries);
  maps.dout = map(queries.dout, queries.heads, first, query_rows, kQueries);
  return maps;
}

}  // namespace

bool fits(const AttentionShape& shape) {
  return std::ranges::find(kHeadDims, shape.head_dim) != std::end(kHeadDims);
}

Maps make_maps(const mma::Call& call, const TaskList<bfloat16>& list, Pass pass, int head_dim,
               TensorMap (*encode)(const MappedRows&)) {
  const Mapper map(head_dim, encode);
  Maps maps;
  for (const Entry& entry : call.entries) maps.entries.push_back(maps_of(entry, call, pass, map));
  for (const Rotation& rotation : call.rotations) {
    const int heads = call.queries[static_cast<std::size_t>(rotation.queries)].heads;
    maps.rotations.push_back(
        map(rotation.rotated, heads, rotation.begin, rotation.rows, kUnitRows));
  }
  if (pass == Pass::forward) return maps;
  for (std::size_t i = 0; i < call.queries.size(); ++i) {
    const Queries& of = call.queries[i];
    maps.dout.push_back(map(of.dout, of.heads, 0, list.queries[i].tokens.size(), kUnitRows));
  }
  for (std::size_t i = 0; i < call.keys.size(); ++i) {
    const Keys& of = call.keys[i];
    const std::int64_t rows = list.keys[i].tokens.size();
    maps.k.push_back(map(of.k, of.heads, 0, rows, kUnitRows));
    maps.v.push_back(map(of.v, of.heads, 0, rows, kUnitRows));
  }
  return maps;
}

}  // namespace cadenza::kernels::sm90
