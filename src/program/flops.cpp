// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/flops.hpp"

#include "cadenza/config/flops.hpp"

namespace cadenza::program {

double matrix_flops(const Step& step, const config::Model& model, int tensor, std::int64_t rows) {
  const double passes = step.pass == Pass::backward ? 2.0 : 1.0;
  switch (step.operation) {
    case Operation::attention_inputs:
      return passes * config::attention_inputs_flops(model, tensor, rows);
    case Operation::attention_outputs:
      return passes * config::attention_outputs_flops(model, tensor, rows);
    case Operation::loss:
      return 3.0 * config::head_flops(model, tensor, rows);
    default:
      return 0;
  }
}

}  // namespace cadenza::program
