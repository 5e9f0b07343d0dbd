// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/element_wise_rate.hpp"

namespace cadenza::program {

double* rate_of(config::ElementWise& rates, const Step& step) {
  const bool forward = step.pass == Pass::forward;
  const auto of = [&](config::PassRates& pass) { return forward ? &pass.forward : &pass.backward; };
  switch (step.operation) {
    case Operation::embed:
    case Operation::embed_gradient:
      return of(rates.embedding);
    case Operation::attention_inputs:
      return of(rates.attention_inputs);
    case Operation::attention_outputs:
      return of(rates.attention_outputs);
    case Operation::begin_attention:
      return &rates.attention_delta;
    case Operation::loss:
      return &rates.loss;
    case Operation::optimize:
      return &rates.optimizer;
    case Operation::load:
    case Operation::post_receive:
    case Operation::receive:
    case Operation::send:
    case Operation::post_index:
    case Operation::wait_index:
    case Operation::estimate:
    case Operation::post:
    case Operation::wait:
    case Operation::attend:
    case Operation::post_results:
    case Operation::wait_results:
    case Operation::reduce_layer:
    case Operation::reduce_gradients:
    case Operation::gradient_norm:
    case Operation::gather_parameters:
      break;
  }
  return nullptr;
}

double element_wise_rate(config::ElementWise rates, const Step& step) {
  const double* rate = rate_of(rates, step);
  return rate != nullptr && *rate > 0 ? *rate : rates.bytes_per_second;
}

}  // namespace cadenza::program
