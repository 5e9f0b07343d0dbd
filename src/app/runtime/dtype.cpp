// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/dtype.hpp"

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::app {

void require_dtype(config::Dtype dtype, bool has_bfloat16, const std::string& host) {
  if (dtype != config::Dtype::bfloat16 || has_bfloat16) return;
  fail(ExitCode::usage,
       "run.dtype: bfloat16 needs a {}; host {} has none; valid here: float32, float64",
       kDeviceIsCuda ? "device of compute capability 8.0 or newer" : "processor with AVX2", host);
}

}  // namespace cadenza::app
