// SPDX-License-Identifier: Apache-2.0
// A training step as a bare loop of its kernels: what plan, program and executor add to is compared
// with this.
#pragma once

#include "measure.hpp"

namespace cadenza::bench {

/// The step of make_step, {"kind": "kernels", ...} with the same keys, float32: its kernels one
/// after another on one activation buffer, with no plan, program, messages or recorded events.
/// Reports the loss.
std::unique_ptr<Work> make_kernels(const Json& request);

}  // namespace cadenza::bench
