// SPDX-License-Identifier: Apache-2.0
// Estimates against what is allocated and what is counted one by one.
#include "cadenza/model/estimate.hpp"

#include <gtest/gtest.h>

#include "cadenza/model/llama.hpp"
#include "unit/model/support.hpp"

namespace cadenza::model {
namespace {

std::vector<config::Model> models() {
  std::vector<config::Model> all = {test::small_model(false), test::small_model(true)};
  config::Model one = test::small_model(false);  // a single head of everything
  one.layers = 1;
  one.d_model = 2;
  one.heads = one.kv_heads = 1;
  one.ffn = 1;
  one.vocab = 1;
  all.push_back(one);
  config::Model chunked = one;  // whose logits are made in chunks
  chunked.vocab = 1 << 18;
  chunked.tie_embeddings = true;
  all.push_back(chunked);
  return all;
}

template <typename Real>
void expect_allocated(const config::Model& model, std::int64_t rows, config::Dtype dtype) {
  MemoryLedger ledger;
  Parameters<Real> parameters = make_parameters<Real>(model, 1, ledger);
  EXPECT_EQ(parameter_elements(model), parameters.table.elements);
  EXPECT_EQ(ledger.total(), parameter_bytes(model, dtype));
  const Llama<Real> llama(model, rows, {}, parameters, ledger);
  EXPECT_EQ(ledger.current(MemoryKind::activations), activation_bytes(model, rows, dtype));
}

TEST(Estimate, BytesAreThoseAllocated) {
  for (const config::Model& model : models()) {
    for (const std::int64_t rows : {1, 5, 40}) {
      SCOPED_TRACE(::testing::Message() << "vocab " << model.vocab << ", rows " << rows);
      expect_allocated<bfloat16>(model, rows, config::Dtype::bfloat16);
      expect_allocated<float>(model, rows, config::Dtype::float32);
      expect_allocated<double>(model, rows, config::Dtype::float64);
    }
  }
}

/// Every product of a forward pass, matrix by matrix and pair by pair.
double counted_flops(const config::Model& model, const std::vector<std::int64_t>& lengths) {
  double weights = 0;  // multiplied with every token
  for (const ParameterInfo& info : make_parameter_table(model).entries) {
    if (info.is_matrix() && info.name != "model.embed_tokens.weight") {
      weights += static_cast<double>(info.count());
    }
  }
  if (model.tie_embeddings) weights += static_cast<double>(model.vocab * model.d_model);
  double tokens = 0, pairs = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t query = 0; query < length; ++query) {
      ++tokens;
      for (std::int64_t key = 0; key <= query; ++key) ++pairs;
    }
  }
  const double attention = 4.0 * static_cast<double>(model.head_dim() * model.heads) * pairs;
  return 3 * 2 * weights * tokens + 3.5 * static_cast<double>(model.layers) * attention;
}

TEST(Estimate, StepFlopsAreThoseCounted) {
  for (const config::Model& model : models()) {
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{}, {1}, {7, 1, 64}, {300}}) {
      EXPECT_DOUBLE_EQ(step_flops(model, lengths), counted_flops(model, lengths));
    }
  }
}

TEST(Estimate, PartsAddUpToTheDenseForward) {
  const config::Model model = test::small_model(false);
  const double layers = 2 * (attention_inputs_flops(model, 9) + attention_outputs_flops(model, 9));
  double weights = 0;
  for (const ParameterInfo& info : make_parameter_table(model).entries) {
    if (info.is_matrix()) weights += static_cast<double>(info.count());
  }
  weights -= static_cast<double>(model.vocab * model.d_model);  // the embedding is looked up
  EXPECT_DOUBLE_EQ(layers + head_flops(model, 9), 2 * 9 * weights);
}

}  // namespace
}  // namespace cadenza::model
