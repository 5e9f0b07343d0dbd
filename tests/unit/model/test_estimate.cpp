// SPDX-License-Identifier: Apache-2.0
// Estimates against what is allocated and what is counted one by one.
#include "cadenza/model/activations.hpp"

#include <gtest/gtest.h>

#include "cadenza/cost/flops.hpp"
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

/// A middle stage, the last slice of two: chunks of one layer.
ModelPart piece_of(const config::Model& model) {
  ModelPart part;
  part.chunks = {{0, 1}, {model.layers - 1, model.layers}};
  part.embedding = part.head = false;
  part.tensor_rank = 1;
  part.tensor_size = 2;
  return part;
}

struct Case {
  config::Model model;
  ModelPart part;
  Capacity capacity;
  config::Recompute recompute;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const config::Recompute recompute : test::kRecompute) {
    for (const config::Model& model : models()) {
      for (const std::int64_t rows : {1, 5, 40}) {
        Capacity capacity{rows, rows == 5 ? 3 : 1};
        capacity.residual = rows == 1 ? config::Precision::sums : config::Precision::stored;
        capacity.slots = rows == 40 ? 2 : 0;
        all.push_back({model, whole_model(model), capacity, recompute});
      }
    }
    config::Model divisible = test::small_model(true);
    divisible.ffn = 12;
    all.push_back({divisible, piece_of(divisible), {6, 2}, recompute});
    ModelPart last = piece_of(divisible);
    last.head = true;
    all.push_back({divisible, last, {40, 4}, recompute});
  }
  return all;
}

template <typename Real>
void expect_allocated(const Case& c, config::Dtype dtype) {
  MemoryLedger ledger;
  const ParameterTable table = make_parameter_table(c.model, c.part);
  const std::vector<Range> owned = {{0, 1}, {3, table.elements / 2}};
  auto parameters = make_parameters<Real>(c.model, c.part, 1, ledger, owned);
  const auto [real, sum] = config::element_bytes(dtype);  // of weights, of gradients
  EXPECT_EQ(ledger.total(),
            table.elements * (real + sum) + optimizer_bytes(dtype, 1 + table.elements / 2 - 3));
  Llama<Real> llama(c.model, c.part, c.capacity, c.recompute, {}, parameters, nullptr, ledger);
  EXPECT_EQ(ledger.current(MemoryKind::activations),
            activation_bytes(c.model, c.part, c.capacity, c.recompute, dtype));
  if (c.capacity.slots > 0) {
    std::int64_t kept = 0;
    for (const auto& array : llama.kept(1)) kept += std::ssize(array);
    EXPECT_EQ(kept, kept_bytes(c.model, c.part, c.capacity, c.recompute, dtype));
  }
  llama.reserve(c.capacity.rows);  // no longer
  llama.reserve(c.capacity.rows - 1);
  EXPECT_EQ(ledger.peak(MemoryKind::activations), ledger.current(MemoryKind::activations));
  llama.reserve(3 * c.capacity.rows);
  Capacity larger = c.capacity;
  larger.rows *= 3;
  EXPECT_EQ(ledger.peak(MemoryKind::activations),
            activation_bytes(c.model, c.part, larger, c.recompute, dtype));
  EXPECT_EQ(ledger.peak(MemoryKind::activations), ledger.current(MemoryKind::activations));
}

/// Halves of a microbatch may be in two layers: of what is recomputed, attention's part exists
/// twice.
TEST(Estimate, HalvesNeedAnotherSetOfRecomputedAttentionOnly) {
  for (const Case& c : cases()) {
    if (c.capacity.slots > 0) continue;
    Capacity halves = c.capacity;
    halves.layers_at_once = 2;
    const auto bytes = [&](const Capacity& capacity, config::Recompute recompute) {
      return activation_bytes(c.model, c.part, capacity, recompute, config::Dtype::float32);
    };
    const bool again =
        c.recompute == config::Recompute::attention || c.recompute == config::Recompute::layer;
    // What a layer keeps of attention: with all layers of a buffer, or once.
    Capacity one = c.capacity, two = c.capacity;
    one.buffers = 1;
    two.buffers = 2;
    const auto buffer = [&](config::Recompute recompute) {
      return bytes(two, recompute) - bytes(one, recompute);
    };
    const std::int64_t attention =
        (buffer(config::Recompute::none) - buffer(config::Recompute::attention)) /
        c.part.most_chunk_layers();
    EXPECT_EQ(bytes(halves, c.recompute) - bytes(c.capacity, c.recompute), again ? attention : 0);
  }
}

TEST(Estimate, BytesAreThoseAllocated) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << "vocab " << c.model.vocab << ", rows " << c.capacity.rows
                                      << ", recompute " << static_cast<int>(c.recompute));
    expect_allocated<bfloat16>(c, config::Dtype::bfloat16);
    expect_allocated<float>(c, config::Dtype::float32);
    expect_allocated<double>(c, config::Dtype::float64);
  }
}

/// Numbers per row that another buffer of a part without a head keeps, counted by hand from what
/// each mode computes again (docs/experiment.md).
TEST(Estimate, RecomputationKeepsWhatItSays) {
  config::Model model = test::small_model(false);  // C 16, H 4, G 2, D 4
  model.ffn = 12;
  model.layers = 6;
  const std::int64_t rows = 8, ids = 4 * (6 * rows + 1);  // the tokens also sorted
  for (const auto& [size, norms] : {std::pair(1, false), {2, false}, {1, true}, {2, true}}) {
    model.qk_norm = norms;
    ModelPart part = whole_model(model);
    part.head = false;
    part.tensor_size = size;
    const std::int64_t held = rows / size;
    const std::int64_t input = held * 16, middle = held * (16 + 1), gate_up = held * 24;
    const std::int64_t attention = held * (16 + 8 + 8 + 16 + 4 + 1 + (norms ? 16 + 8 : 0));
    const std::int64_t kept[] = {input + attention + middle + gate_up, input + attention + middle,
                                 input + middle + gate_up, input};
    int mode = 0;
    for (const config::Recompute recompute : test::kRecompute) {
      const auto bytes = [&](int buffers) {
        return activation_bytes(model, part, {rows, buffers}, recompute, config::Dtype::float64);
      };
      EXPECT_EQ(bytes(4) - bytes(3), 6 * 8 * kept[mode++] + ids);
    }
  }
}

/// Every product of a forward pass, matrix by matrix and pair by pair.
double counted_flops(double attention_passes, const config::Model& model,
                     const std::vector<std::int64_t>& lengths) {
  double weights = 0;  // multiplied with every token
  for (const ParameterInfo& info : test::whole_table(model).entries) {
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
  return 3 * 2 * weights * tokens +
         attention_passes * static_cast<double>(model.layers) * attention;
}

TEST(Estimate, StepFlopsAreThoseCounted) {
  for (const config::Model& model : models()) {
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{}, {1}, {7, 1, 64}, {300}}) {
      EXPECT_DOUBLE_EQ(cost::model_flops(model, {}, lengths), counted_flops(3, model, lengths));
      EXPECT_DOUBLE_EQ(cost::step_flops(model, {}, lengths), counted_flops(3.5, model, lengths));
    }
  }
}

TEST(Estimate, PartsAddUpToTheDenseForward) {
  config::Model model = test::small_model(false);
  model.ffn = 12;
  double weights = 0;
  for (const ParameterInfo& info : test::whole_table(model).entries) {
    if (info.is_matrix()) weights += static_cast<double>(info.count());
  }
  weights -= static_cast<double>(model.vocab * model.d_model);  // the embedding is looked up
  for (const int size : {1, 2}) {
    const double flops = 2 * (cost::attention_inputs_flops(model, size, 9) +
                              cost::attention_outputs_flops(model, size, 9)) +
                         cost::head_flops(model, size, 9);
    EXPECT_DOUBLE_EQ(size * flops, 2 * 9 * weights);
  }
}

}  // namespace
}  // namespace cadenza::model
