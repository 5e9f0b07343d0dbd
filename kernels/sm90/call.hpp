// SPDX-License-Identifier: Apache-2.0
// A task list as the kernels for Hopper read it: a call of mma/ and the maps of its arrays.
#pragma once

#include <vector>

#include "../mma/call.hpp"
#include "cadenza/base/pass.hpp"
#include "problem.hpp"

namespace cadenza::kernels::sm90 {

/// Whether the kernels take the shape.
bool fits(const AttentionShape& shape);

/// Those of a pass; what it does not read stays empty.
struct Maps {
  std::vector<EntryMaps> entries;
  std::vector<TensorMap> rotations;
  std::vector<TensorMap> dout;
  std::vector<TensorMap> k;
  std::vector<TensorMap> v;
};

/// `call` is of `list`, and its rotated queries have their places. `encode`: tensor_map.
Maps make_maps(const mma::Call& call, const TaskList<bfloat16>& list, Pass pass, int head_dim,
               TensorMap (*encode)(const MappedRows&));

}  // namespace cadenza::kernels::sm90
