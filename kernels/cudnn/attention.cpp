// SPDX-License-Identifier: Apache-2.0
#ifdef CADENZA_CUDNN

#include "attention.hpp"

#include <algorithm>

#include "../mma/stream_memory.hpp"
#include "graph.hpp"
#include "staged_pass.hpp"

namespace cadenza::kernels::cudnn {

void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list) {
  using Memory = mma::StreamArray<unsigned char>;
  const StagedPass staged(pass, shape, rotary, list);
  std::size_t most = 0;
  for (const SdpaCall& call : staged.calls()) {
    most = std::max(most, workspace_bytes(pass, call.shape));
  }
  const cudaStream_t stream = Device().cuda_stream();
  const Memory memory(staged.bytes(), stream);
  const Memory workspace(most, stream);
  staged.run(memory.data(), [&](const SdpaShape& of, const SdpaRows& rows) {
    execute(pass, of, rows, workspace.data(), stream);
  });
}

}  // namespace cadenza::kernels::cudnn

#endif
