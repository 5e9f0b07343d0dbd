// SPDX-License-Identifier: Apache-2.0
#include "operation_category.hpp"

namespace cadenza::simulate {

using program::Operation;
using trace::Category;

trace::Category category_of(Operation operation) {
  switch (operation) {
    case Operation::load:
      return Category::data;
    case Operation::attend:
      return Category::compute_attention;
    case Operation::attention_inputs:
    case Operation::attention_outputs:
    case Operation::loss:
      return Category::compute_dense;
    case Operation::gradient_norm:
    case Operation::optimize:
      return Category::optimizer;
    case Operation::embed:
    case Operation::receive:
    case Operation::send:
    case Operation::begin_attention:
    case Operation::post:
    case Operation::wait:
    case Operation::post_results:
    case Operation::wait_results:
    case Operation::embed_gradient:
    case Operation::reduce_layer:
    case Operation::reduce_gradients:
    case Operation::gather_parameters:
      break;
  }
  return Category::compute_other;
}

}  // namespace cadenza::simulate
