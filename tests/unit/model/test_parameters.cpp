// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/parameters.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "unit/model/support.hpp"

namespace cadenza::model {
namespace {

using test::small_model;
using test::Vector;

/// Names and shapes of Hugging Face's LlamaForCausalLM for this model, state_dict() as it prints;
/// tied, of Qwen2ForCausalLM and Qwen3ForCausalLM in one.
std::map<std::string, std::pair<std::int64_t, std::int64_t>> expected_shapes(bool tied) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> shapes = {
      {"model.embed_tokens.weight", {13, 16}}, {"model.norm.weight", {16, 0}}};
  const std::int64_t queries = tied ? 24 : 16, keys = queries / 2;
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    shapes[layer + "self_attn.q_proj.weight"] = {queries, 16};
    shapes[layer + "self_attn.k_proj.weight"] = {keys, 16};
    shapes[layer + "self_attn.v_proj.weight"] = {keys, 16};
    shapes[layer + "self_attn.o_proj.weight"] = {16, queries};
    if (tied) {
      shapes[layer + "self_attn.q_proj.bias"] = {queries, 0};
      shapes[layer + "self_attn.k_proj.bias"] = {keys, 0};
      shapes[layer + "self_attn.v_proj.bias"] = {keys, 0};
      shapes[layer + "self_attn.q_norm.weight"] = {6, 0};
      shapes[layer + "self_attn.k_norm.weight"] = {6, 0};
    }
    shapes[layer + "mlp.gate_proj.weight"] = {11, 16};
    shapes[layer + "mlp.up_proj.weight"] = {11, 16};
    shapes[layer + "mlp.down_proj.weight"] = {16, 11};
    shapes[layer + "input_layernorm.weight"] = {16, 0};
    shapes[layer + "post_attention_layernorm.weight"] = {16, 0};
  }
  if (!tied) shapes["lm_head.weight"] = {13, 16};
  return shapes;
}

std::map<std::string, ParameterInfo> by_name(const ParameterTable& table) {
  std::map<std::string, ParameterInfo> found;
  for (const ParameterInfo& info : table.entries) found[info.name] = info;
  return found;
}

TEST(ParameterTable, NamesAndShapesAreHuggingFaces) {
  for (const bool tied : {false, true}) {
    const ParameterTable table = test::whole_table(small_model(tied));
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> found;
    for (const ParameterInfo& info : table.entries) found[info.name] = {info.rows, info.columns};
    EXPECT_EQ(found, expected_shapes(tied));
    EXPECT_EQ(found.size(), table.entries.size()) << "a name appears twice";
  }
}

TEST(ParameterTable, EntriesFillTheArraysMatricesFirst) {
  for (const bool tied : {false, true}) {
    const ParameterTable table = test::whole_table(small_model(tied));
    std::int64_t next = 0;
    for (const ParameterInfo& info : table.entries) {
      EXPECT_EQ(info.offset, next) << info.name;
      next += info.count();
      EXPECT_EQ(info.is_matrix(), next <= table.matrix_elements) << info.name;
      EXPECT_EQ(info.replicated, next > table.sliced_elements) << info.name;
    }
    EXPECT_EQ(next, table.elements);
  }
}

TEST(ParameterTable, OffsetsPointAtTheirNames) {
  for (const bool tied : {false, true}) {
    const ParameterTable table = test::whole_table(small_model(tied));
    const auto at = [found = by_name(table)](const std::string& name) {
      return found.at(name).offset;
    };
    EXPECT_EQ(table.embedding, at("model.embed_tokens.weight"));
    EXPECT_EQ(table.head, at(tied ? "model.embed_tokens.weight" : "lm_head.weight"));
    EXPECT_EQ(table.final_norm, at("model.norm.weight"));
    ASSERT_EQ(table.layers.size(), 2U);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      const LayerOffsets& offsets = table.layers[layer];
      EXPECT_EQ(offsets.input_norm, at(prefix + "input_layernorm.weight"));
      EXPECT_EQ(offsets.q, at(prefix + "self_attn.q_proj.weight"));
      EXPECT_EQ(offsets.k, at(prefix + "self_attn.k_proj.weight"));
      EXPECT_EQ(offsets.v, at(prefix + "self_attn.v_proj.weight"));
      EXPECT_EQ(offsets.o, at(prefix + "self_attn.o_proj.weight"));
      EXPECT_EQ(offsets.post_norm, at(prefix + "post_attention_layernorm.weight"));
      EXPECT_EQ(offsets.gate, at(prefix + "mlp.gate_proj.weight"));
      EXPECT_EQ(offsets.up, at(prefix + "mlp.up_proj.weight"));
      EXPECT_EQ(offsets.down, at(prefix + "mlp.down_proj.weight"));
      EXPECT_EQ(offsets.q_bias, tied ? at(prefix + "self_attn.q_proj.bias") : -1);
      EXPECT_EQ(offsets.k_bias, tied ? at(prefix + "self_attn.k_proj.bias") : -1);
      EXPECT_EQ(offsets.v_bias, tied ? at(prefix + "self_attn.v_proj.bias") : -1);
      EXPECT_EQ(offsets.q_norm, tied ? at(prefix + "self_attn.q_norm.weight") : -1);
      EXPECT_EQ(offsets.k_norm, tied ? at(prefix + "self_attn.k_norm.weight") : -1);
    }
  }
}

template <typename Real>
std::map<std::string, Vector> values_by_name(const config::Model& model, std::uint64_t seed) {
  MemoryLedger ledger;
  const Parameters<Real> parameters = test::whole_parameters<Real>(model, seed, ledger);
  const Vector all = test::download_double(test::masters(parameters));
  std::map<std::string, Vector> values;
  for (const ParameterInfo& info : parameters.table.entries) {
    values[info.name] = {all.begin() + info.offset, all.begin() + info.offset + info.count()};
  }
  return values;
}

TEST(Parameters, ValuesDependOnSeedNameAndIndexAlone) {
  const auto values = values_by_name<double>(small_model(false), 7);
  // A deeper, tied model with another feed-forward width shares what has the same name; a wider
  // matrix shares its first elements.
  config::Model other = small_model(true);
  other.layers = 3;
  other.ffn = 20;
  const auto others = values_by_name<double>(other, 7);
  for (const auto& [name, mine] : values) {
    if (name == "lm_head.weight") continue;
    const Vector& theirs = others.at(name);
    ASSERT_GE(theirs.size(), mine.size());
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), theirs.begin())) << name;
  }
  for (const auto& [name, mine] : values) {
    if (name.find("norm") != name.npos) continue;
    const std::uint64_t stream = Hasher().add(name).value();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const double expected = 0.02 * random_normal(7, stream, i);
      // A device's log and cos round on their own.
      const double off = kDeviceIsCuda ? 1e-14 * std::abs(expected) : 0.0;
      ASSERT_NEAR(mine[i], expected, off) << name << " " << i;
    }
  }
}

TEST(Parameters, SeedsAndNamesDrawDifferentNumbers) {
  const auto one = values_by_name<double>(small_model(false), 1);
  const auto two = values_by_name<double>(small_model(false), 2);
  std::set<double> firsts;
  for (const auto& [name, mine] : one) {
    if (name.find("norm") != name.npos) continue;
    EXPECT_NE(mine, two.at(name)) << name;
    EXPECT_TRUE(firsts.insert(mine[0]).second) << name;
    EXPECT_TRUE(firsts.insert(two.at(name)[0]).second) << name;
  }
}

TEST(Parameters, FloatIsRoundedDouble) {
  const auto exact = values_by_name<double>(small_model(false), 3);
  for (const auto& [name, rounded] : values_by_name<float>(small_model(false), 3)) {
    EXPECT_EQ(rounded, testing::convert<double>(testing::convert<float>(exact.at(name)))) << name;
  }
}

TEST(Parameters, WeightsAreTheMastersRounded) {
  MemoryLedger ledger;
  const auto same = test::whole_parameters<float>(small_model(false), 3, ledger);
  EXPECT_EQ(same.masters.size(), 0);
  auto rounded = test::whole_parameters<bfloat16>(small_model(false), 3, ledger);
  const Vector values = test::download_double(rounded.masters);
  EXPECT_EQ(values, test::download_double(same.weights));
  EXPECT_EQ(test::download_double(rounded.weights), test::rounded_to<bfloat16>(values));
  set_weights(rounded, {0, rounded.table.elements},
              std::vector<float>(values.size(), 1 + 0x1p-9f).data());
  EXPECT_THAT(test::download_double(rounded.weights), ::testing::Each(1.0));
  EXPECT_THAT(test::download_double(rounded.masters), ::testing::Each(1 + 0x1p-9));
}

TEST(Parameters, AShareHasMastersOfItsElementsAlone) {
  MemoryLedger ledger;
  const auto whole = test::whole_parameters<bfloat16>(small_model(false), 3, ledger);
  const Vector all = test::download_double(whole.masters);
  const std::int64_t elements = whole.table.elements;
  const std::vector<Range> owned{{3, elements / 3}, {elements / 2, elements - 1}};
  auto share = make_parameters<bfloat16>(small_model(false), whole_model(small_model(false)), 3,
                                         ledger, owned);
  EXPECT_EQ(test::download_double(share.weights), test::download_double(whole.weights));
  EXPECT_EQ(test::download_double(share.masters), test::owned_of(all, owned));
  Vector others(all.size());
  std::iota(others.begin(), others.end(), 1.0);
  set_weights(share, {0, elements}, std::vector<float>(others.begin(), others.end()).data());
  EXPECT_EQ(test::download_double(share.weights), test::rounded_to<bfloat16>(others));
  EXPECT_EQ(test::download_double(share.masters), test::owned_of(others, owned));
}

/// Products read Q, K and V as one matrix, and gate and up as another; sums their biases as one.
TEST(ParameterTable, MatricesThatAreReadTogetherAreNeighbours) {
  const config::Model model = small_model(true);
  for (const LayerOffsets& layer : test::whole_table(model).layers) {
    EXPECT_EQ(layer.k, layer.q + 24 * 16);
    EXPECT_EQ(layer.v, layer.k + 12 * 16);
    EXPECT_EQ(layer.up, layer.gate + 11 * 16);
    EXPECT_EQ(layer.k_bias, layer.q_bias + 24);
    EXPECT_EQ(layer.v_bias, layer.k_bias + 12);
    EXPECT_EQ(layer.k_norm, layer.q_norm + 6);
  }
}

TEST(Parameters, MatricesAreNormalBiasesZeroAndNormsOne) {
  config::Model model = small_model(false);
  model.qkv_bias = model.qk_norm = true;
  model.d_model = 64;
  model.vocab = 1000;
  model.ffn = 300;
  for (const auto& [name, values] : values_by_name<float>(model, 11)) {
    if (name.find("norm") != name.npos) {
      EXPECT_THAT(values, ::testing::Each(1.0)) << name;
      continue;
    }
    if (name.ends_with(".bias")) {
      EXPECT_THAT(values, ::testing::Each(0.0)) << name;
      continue;
    }
    const auto count = static_cast<double>(values.size());
    double sum = 0, squares = 0;
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
    // Five standard errors of a mean and of a deviation.
    EXPECT_NEAR(sum / count, 0, 5 * 0.02 / std::sqrt(count)) << name;
    EXPECT_NEAR(std::sqrt(squares / count), 0.02, 5 * 0.02 / std::sqrt(2 * count)) << name;
  }
}

TEST(Parameters, EverythingElseStartsAtZero) {
  MemoryLedger ledger;
  const auto parameters = test::whole_parameters<float>(small_model(false), 1, ledger);
  for (const auto& array :
       {parameters.gradients, parameters.first_moment, parameters.second_moment}) {
    ASSERT_EQ(array.extent(0), static_cast<std::size_t>(parameters.table.elements));
    EXPECT_THAT(testing::download(array), ::testing::Each(0.0F));
  }
}

/// Every part of a layout: stages with their chunks, each in slices.
std::vector<ModelPart> parts_of(std::int64_t stages, std::int64_t chunks, std::int64_t chunk_layers,
                                int tensor) {
  std::vector<ModelPart> parts;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    for (int rank = 0; rank < tensor; ++rank) {
      ModelPart part{{}, stage == 0, stage + 1 == stages, rank, tensor};
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const std::int64_t first = (chunk * stages + stage) * chunk_layers;
        part.chunks.push_back({first, first + chunk_layers});
      }
      parts.push_back(part);
    }
  }
  return parts;
}

config::Model quarterable_model() {
  config::Model model = small_model(false);
  model.layers = 4;
  model.kv_heads = 4;
  model.ffn = 12;
  model.qkv_bias = model.qk_norm = true;
  return model;
}

struct PartsCase {
  std::int64_t stages, chunks, chunk_layers;
  int tensor;
};

class Parts : public ::testing::TestWithParam<PartsCase> {};

/// Elements that no block wrote stay NaN and compare unequal.
TEST_P(Parts, BlocksMakeUpTheWholeModel) {
  const auto [stages, chunks, chunk_layers, tensor] = GetParam();
  const auto whole = values_by_name<double>(quarterable_model(), 7);
  std::map<std::string, Vector> assembled;
  std::map<std::string, std::int64_t> written;
  for (const ModelPart& part : parts_of(stages, chunks, chunk_layers, tensor)) {
    MemoryLedger ledger;
    const auto parameters = make_parameters<double>(quarterable_model(), part, 7, ledger, {});
    const Vector values = test::download_double(parameters.weights);
    for (const ParameterInfo& info : parameters.table.entries) {
      EXPECT_EQ(info.whole_count(), static_cast<std::int64_t>(whole.at(info.name).size()));
      EXPECT_EQ(info.replicated, info.name.find("norm") != info.name.npos);
      Vector& target = assembled[info.name];
      target.resize(whole.at(info.name).size(), std::nan(""));
      place_block(info, values.data() + info.offset, target.data());
      if (!info.replicated || part.tensor_rank == 0) written[info.name] += info.count();
    }
  }
  EXPECT_EQ(assembled, whole);
  for (const auto& [name, count] : written) {
    EXPECT_EQ(count, static_cast<std::int64_t>(whole.at(name).size())) << name;
  }
}

TEST_P(Parts, LayersAndTheRestAreAllElementsOnce) {
  const auto [stages, chunks, chunk_layers, tensor] = GetParam();
  for (const ModelPart& part : parts_of(stages, chunks, chunk_layers, tensor)) {
    const ParameterTable table = make_parameter_table(quarterable_model(), part);
    std::vector<int> times(static_cast<std::size_t>(table.elements), 0);
    const auto count = [&](const Range& range) {
      for (std::int64_t i = range.begin; i < range.end; ++i) ++times[static_cast<std::size_t>(i)];
    };
    for (int layer = 0; layer < static_cast<int>(part.layers()); ++layer) {
      const Range range = layer_elements(table, layer);
      const LayerOffsets& offsets = table.layers[static_cast<std::size_t>(layer)];
      EXPECT_EQ(range.begin, offsets.q);
      EXPECT_EQ(range.end, offsets.down + 12 * 16 / tensor);
      count(range);
    }
    for (const Range& range : remaining_elements(table)) {
      EXPECT_FALSE(range.empty());
      count(range);
    }
    EXPECT_THAT(times, ::testing::Each(1));
    EXPECT_EQ(all_elements(table), std::vector<Range>({{0, table.elements}}));
    EXPECT_EQ(table.embedding >= 0, part.embedding);
    EXPECT_EQ(table.head >= 0, part.head);
    EXPECT_EQ(table.final_norm >= 0, part.head);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Parts,
                         ::testing::Values(PartsCase{1, 1, 4, 1}, PartsCase{1, 1, 4, 2},
                                           PartsCase{1, 1, 4, 4}, PartsCase{2, 1, 2, 1},
                                           PartsCase{4, 1, 1, 2}, PartsCase{2, 2, 1, 1},
                                           PartsCase{2, 2, 1, 4}, PartsCase{1, 2, 2, 2}));

}  // namespace
}  // namespace cadenza::model
