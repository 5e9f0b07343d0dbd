// SPDX-License-Identifier: Apache-2.0
// run.dtype as a type, and whether a host has it.
#pragma once

#include <string>

#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::app {

/// Calls body(Real{}) with the type that the run computes in.
template <typename Body>
void with_real(config::Dtype dtype, Body body) {
  switch (dtype) {
    case config::Dtype::bfloat16:
      return body(bfloat16{});
    case config::Dtype::float32:
      return body(float{});
    case config::Dtype::float64:
      return body(double{});
  }
}

/// Planning asks for no more than the experiment says; computing needs the host's consent.
/// @param has_bfloat16  kernels::supports_bfloat16() of this rank
/// @param host          its name, for the message
/// @throws Error(usage)
void require_dtype(config::Dtype dtype, bool has_bfloat16, const std::string& host);

}  // namespace cadenza::app
