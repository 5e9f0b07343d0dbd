// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/parameters.hpp"

#include <fmt/format.h>

#include <type_traits>

#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/model/layers.hpp"

namespace cadenza::model {
namespace {

constexpr double kInitialDeviation = 0.02;  // Hugging Face's initializer_range

class TableBuilder {
 public:
  std::int64_t add(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const ParameterInfo info{name, rows, columns, table_.elements};
    table_.entries.push_back(info);
    table_.elements += info.count();
    if (info.is_matrix()) table_.matrix_elements = table_.elements;
    return info.offset;
  }
  ParameterTable& table() { return table_; }

 private:
  ParameterTable table_;
};

}  // namespace

ParameterTable make_parameter_table(const config::Model& model) {
  TableBuilder builder;
  ParameterTable& table = builder.table();
  const std::int64_t width = model.d_model;
  const std::int64_t kv_width = model.kv_heads * model.head_dim();
  table.embedding = builder.add("model.embed_tokens.weight", model.vocab, width);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    LayerOffsets offsets{};
    offsets.q = builder.add(prefix + "self_attn.q_proj.weight", width, width);
    offsets.k = builder.add(prefix + "self_attn.k_proj.weight", kv_width, width);
    offsets.v = builder.add(prefix + "self_attn.v_proj.weight", kv_width, width);
    offsets.o = builder.add(prefix + "self_attn.o_proj.weight", width, width);
    offsets.gate = builder.add(prefix + "mlp.gate_proj.weight", model.ffn, width);
    offsets.up = builder.add(prefix + "mlp.up_proj.weight", model.ffn, width);
    offsets.down = builder.add(prefix + "mlp.down_proj.weight", width, model.ffn);
    table.layers.push_back(offsets);
  }
  table.head =
      model.tie_embeddings ? table.embedding : builder.add("lm_head.weight", model.vocab, width);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    LayerOffsets& offsets = table.layers[static_cast<std::size_t>(layer)];
    offsets.input_norm = builder.add(prefix + "input_layernorm.weight", width, 0);
    offsets.post_norm = builder.add(prefix + "post_attention_layernorm.weight", width, 0);
  }
  table.final_norm = builder.add("model.norm.weight", width, 0);
  return table;
}

template <typename Real>
Parameters<Real> make_parameters(const config::Model& model, std::uint64_t seed,
                                 MemoryLedger& ledger) {
  using Sum = Accumulator<Real>;
  Parameters<Real> parameters;
  parameters.table = make_parameter_table(model);
  const std::int64_t count = parameters.table.elements;
  parameters.values = allocate<Sum>(ledger, MemoryKind::parameters, "parameters", count);
  if constexpr (std::is_same_v<Real, Sum>) {
    parameters.working = parameters.values;
  } else {
    parameters.working = allocate<Real>(ledger, MemoryKind::parameters, "working", count);
  }
  parameters.gradients = allocate<Sum>(ledger, MemoryKind::gradients, "gradients", count);
  parameters.first_moment = allocate<Sum>(ledger, MemoryKind::optimizer, "first_moment", count);
  parameters.second_moment = allocate<Sum>(ledger, MemoryKind::optimizer, "second_moment", count);

  auto host = Kokkos::create_mirror_view(parameters.values);
  for (const ParameterInfo& info : parameters.table.entries) {
    Sum* values = host.data() + info.offset;
    const std::uint64_t stream = Hasher().add(info.name).value();
    const bool matrix = info.is_matrix();
    Kokkos::parallel_for(
        "initialise_parameters",
        Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace>(0, info.count()),
        [=](const std::int64_t i) {
          values[i] =
              matrix ? static_cast<Sum>(kInitialDeviation *
                                        random_normal(seed, stream, static_cast<std::uint64_t>(i)))
                     : Sum(1);
        });
  }
  Kokkos::deep_copy(parameters.values, host);
  round_working(parameters);
  return parameters;
}

template <typename Real>
void round_working(Parameters<Real>& parameters) {
  if constexpr (!std::is_same_v<Real, Accumulator<Real>>) {
    round(parameters.values.data(), parameters.table.elements, parameters.working.data());
  }
}

#define CADENZA_INSTANTIATE(Real)                                                                \
  template Parameters<Real> make_parameters(const config::Model&, std::uint64_t, MemoryLedger&); \
  template void round_working(Parameters<Real>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
