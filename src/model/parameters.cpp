// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {
namespace {

constexpr double kInitialDeviation = 0.02;  // Hugging Face's initializer_range

/// Dimension along which a tensor group splits a matrix.
enum class Split { rows, columns };

class TableBuilder {
 public:
  explicit TableBuilder(const ModelPart& part) : part_(part) {
    table_.tensor_rank = part.tensor_rank;
  }

  /// Adds a [rows, columns] matrix of the model. @return offset
  std::int64_t matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
                      Split split) {
    const Range range = tensor_share(part_, split == Split::rows ? rows : columns);
    ParameterInfo info{name, rows, columns, table_.elements, 0, 0, rows, columns, false};
    (split == Split::rows ? info.rows : info.columns) = range.size();
    (split == Split::rows ? info.row_begin : info.column_begin) = range.begin;
    add(info);
    table_.matrix_elements = table_.elements;
    return info.offset;
  }
  std::int64_t vector(const std::string& name, std::int64_t rows) {
    const ParameterInfo info{name, rows, 0, table_.elements, 0, 0, rows, 0, true};
    add(info);
    return info.offset;
  }
  ParameterTable& table() { return table_; }

 private:
  void add(const ParameterInfo& info) {
    table_.entries.push_back(info);
    table_.elements += info.count();
  }

  const ModelPart& part_;
  ParameterTable table_;
};

/// Returns "model.layers.<number>." for every local layer.
std::vector<std::string> layer_prefixes(const ModelPart& part) {
  std::vector<std::string> prefixes;
  for (const Range& chunk : part.chunks) {
    for (std::int64_t layer = chunk.begin; layer < chunk.end; ++layer) {
      prefixes.push_back(fmt::format("model.layers.{}.", layer));
    }
  }
  return prefixes;
}

/// Adds a layer's matrices. Matrices that one product reads are adjacent: q, k and v; gate and up.
LayerOffsets add_matrices(TableBuilder& builder, const config::Model& model,
                          const std::string& prefix) {
  const std::int64_t width = model.d_model;
  const std::int64_t keys = model.kv_heads * model.head_dim();
  LayerOffsets offsets{};
  offsets.matrices.begin = builder.table().elements;
  offsets.q = builder.matrix(prefix + "self_attn.q_proj.weight", width, width, Split::rows);
  offsets.k = builder.matrix(prefix + "self_attn.k_proj.weight", keys, width, Split::rows);
  offsets.v = builder.matrix(prefix + "self_attn.v_proj.weight", keys, width, Split::rows);
  offsets.o = builder.matrix(prefix + "self_attn.o_proj.weight", width, width, Split::columns);
  offsets.gate = builder.matrix(prefix + "mlp.gate_proj.weight", model.ffn, width, Split::rows);
  offsets.up = builder.matrix(prefix + "mlp.up_proj.weight", model.ffn, width, Split::rows);
  offsets.down = builder.matrix(prefix + "mlp.down_proj.weight", width, model.ffn, Split::columns);
  offsets.matrices.end = builder.table().elements;
  return offsets;
}

/// Allocates values, gradients and moments, all zero.
template <typename Real>
void allocate_arrays(Parameters<Real>& p, bool gradients, MemoryLedger& ledger) {
  using Sum = Accumulator<Real>;
  const std::int64_t count = p.table.elements;
  std::int64_t owned = 0;
  for (const Range& range : p.owned) owned += range.size();
  p.values = allocate<Sum>(ledger, MemoryKind::parameters, "parameters", count);
  if constexpr (std::is_same_v<Real, Sum>) {
    p.working = p.values;
  } else {
    p.working = allocate<Real>(ledger, MemoryKind::parameters, "working", count);
  }
  p.gradients = allocate<Sum>(ledger, MemoryKind::gradients, "gradients", gradients ? count : 0);
  p.first_moment = allocate<Sum>(ledger, MemoryKind::optimizer, "first_moment", owned);
  p.second_moment = allocate<Sum>(ledger, MemoryKind::optimizer, "second_moment", owned);
}

/// Initialises a block: each element of a matrix by its index in the whole, a vector to ones.
template <typename Sum>
void initialise(const ParameterInfo& info, std::uint64_t seed, Sum* values) {
  if (!info.is_matrix()) {
    for_elements(
        "initialise_ones", info.count(), KOKKOS_LAMBDA(const std::int64_t i) { values[i] = 1; });
    return;
  }
  const std::uint64_t stream = Hasher().add(info.name).value();
  const std::int64_t columns = info.columns, whole_columns = info.whole_columns;
  const std::int64_t first = info.row_begin * whole_columns + info.column_begin;
  for_elements(
      "initialise_matrix", info.count(), KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t index = first + i / columns * whole_columns + i % columns;
        values[i] = static_cast<Sum>(
            kInitialDeviation * random_normal(seed, stream, static_cast<std::uint64_t>(index)));
      });
}

}  // namespace

ParameterTable make_parameter_table(const config::Model& model, const ModelPart& part) {
  TableBuilder builder(part);
  ParameterTable& table = builder.table();
  const std::int64_t width = model.d_model;
  const std::vector<std::string> prefixes = layer_prefixes(part);
  if (part.embedding) {
    table.embedding = builder.matrix("model.embed_tokens.weight", model.vocab, width, Split::rows);
  }
  for (const std::string& prefix : prefixes) {
    table.layers.push_back(add_matrices(builder, model, prefix));
  }
  if (part.head) {
    table.head = model.tie_embeddings
                     ? table.embedding
                     : builder.matrix("lm_head.weight", model.vocab, width, Split::rows);
  }
  for (std::size_t layer = 0; layer < prefixes.size(); ++layer) {
    LayerOffsets& offsets = table.layers[layer];
    offsets.input_norm = builder.vector(prefixes[layer] + "input_layernorm.weight", width);
    offsets.post_norm = builder.vector(prefixes[layer] + "post_attention_layernorm.weight", width);
  }
  if (part.head) table.final_norm = builder.vector("model.norm.weight", width);
  return table;
}

Range layer_elements(const ParameterTable& table, int layer) {
  return table.layers[at(layer)].matrices;
}

std::vector<Range> remaining_elements(const ParameterTable& table) {
  std::vector<Range> remaining;
  std::int64_t next = 0;
  for (const LayerOffsets& layer : table.layers) {
    if (layer.matrices.begin > next) remaining.push_back({next, layer.matrices.begin});
    next = layer.matrices.end;
  }
  if (table.elements > next) remaining.push_back({next, table.elements});
  return remaining;
}

std::vector<Range> all_elements(const ParameterTable& table) {
  return {{0, table.elements}};
}

template <typename Real>
Parameters<Real> make_parameters(const config::Model& model, const ModelPart& part,
                                 std::uint64_t seed, MemoryLedger& ledger,
                                 const std::vector<Range>& owned, bool gradients) {
  Parameters<Real> parameters;
  parameters.table = make_parameter_table(model, part);
  parameters.owned = owned;
  allocate_arrays(parameters, gradients, ledger);
  for (const ParameterInfo& info : parameters.table.entries) {
    initialise(info, seed, parameters.values.data() + info.offset);
  }
  round_working(parameters, {0, parameters.table.elements});
  return parameters;
}

template <typename Real>
void round_working(Parameters<Real>& parameters, Range range) {
  if constexpr (!std::is_same_v<Real, Accumulator<Real>>) {
    round(parameters.values.data() + range.begin, range.size(),
          parameters.working.data() + range.begin);
  }
}

template <typename Sum>
void place_block(const ParameterInfo& info, const Sum* block, Sum* whole) {
  if (!info.is_matrix()) {
    std::copy_n(block, info.rows, whole + info.row_begin);
    return;
  }
  for (std::int64_t row = 0; row < info.rows; ++row) {
    std::copy_n(block + row * info.columns, info.columns,
                whole + (info.row_begin + row) * info.whole_columns + info.column_begin);
  }
}

#define CADENZA_INSTANTIATE(Real)                                                                  \
  template Parameters<Real> make_parameters(const config::Model&, const ModelPart&, std::uint64_t, \
                                            MemoryLedger&, const std::vector<Range>&, bool);       \
  template void round_working(Parameters<Real>&, Range);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE
template void place_block(const ParameterInfo&, const float*, float*);
template void place_block(const ParameterInfo&, const double*, double*);

}  // namespace cadenza::model
