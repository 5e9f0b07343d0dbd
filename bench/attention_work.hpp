// SPDX-License-Identifier: Apache-2.0
// Core attention of a batch of documents through the kernels' seam.
#pragma once

#include "measure.hpp"

namespace cadenza::bench {

/// Attention on unit-normal data, causal and without rotation unless the request says otherwise:
/// {"heads", "kv_heads", "head_dim", "documents": [lengths], "pass": "forward" | "backward",
///  "dtype": "float32" | "bfloat16", "task": queries per task (0, the default: whole documents),
///  "kernel": the word of attention.kernel ("auto"), "rotate": Q is rotated (false), "window": a
///  sliding window of so many keys (0: none), "chunk", "local": dual chunk attention (0: none),
///  "slashes", "columns", "block": a vertical-slash pattern of so many of each, spread over every
///  document, near ones denser (0: none)}.
/// All tasks are of one call; those of a document share its buffers. A repetition starts from
/// nothing, as the peers' does: forward includes the empty outputs that it merges into, backward
/// delta and the zeros that it adds to. FLOPs: 4 D H per pair, of causal attention 2 S^2 D H per
/// document, forward, 2.5 x backward.
std::unique_ptr<Work> make_attention(const Json& request);

}  // namespace cadenza::bench
