// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/flops.hpp"

#include "cadenza/config/flops.hpp"

namespace cadenza::program {

namespace {

/// Gate and up are made again in the backward pass with `recompute: mlp`, down never is.
double recomputed_products(const Step& step, config::Recompute recompute) {
  if (step.again) return -1.0;
  return step.pass == Pass::backward && recompute == config::Recompute::mlp ? 2.0 : 0.0;
}

}  // namespace

double matrix_flops(const Step& step, const config::Experiment& e, std::int64_t rows) {
  const config::Model& model = e.model;
  const int tensor = e.parallel.tensor;
  const double passes = step.pass == Pass::backward && !step.again ? 2.0 : 1.0;
  switch (step.operation) {
    case Operation::attention_inputs:
      return passes * config::attention_inputs_flops(model, tensor, rows);
    case Operation::attention_outputs:
      return passes * config::attention_outputs_flops(model, tensor, rows) +
             recomputed_products(step, e.run.recompute) *
                 config::feed_forward_matrix_flops(model, tensor, rows);
    case Operation::loss:
      return 3.0 * config::head_flops(model, tensor, rows);
    default:
      return 0;
  }
}

}  // namespace cadenza::program
