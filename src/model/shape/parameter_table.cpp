// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/shape/parameter_table.hpp"

#include <fmt/format.h>

#include "cadenza/base/at.hpp"

namespace cadenza::model {
namespace {

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
    table_.matrix_elements = table_.sliced_elements = table_.elements;
    return info.offset;
  }
  /// Adds the bias of a matrix that is split by rows. @return offset
  std::int64_t bias(const std::string& name, std::int64_t rows) {
    const Range range = tensor_share(part_, rows);
    const ParameterInfo info{name, range.size(), 0, table_.elements, range.begin, 0, rows,
                             0,    false};
    add(info);
    table_.sliced_elements = table_.elements;
    return info.offset;
  }
  /// Adds the weights of a norm. @return offset
  std::int64_t norm(const std::string& name, std::int64_t rows) {
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
  const std::int64_t queries = model.query_width();
  const std::int64_t keys = model.kv_heads * model.head_dim();
  LayerOffsets offsets{};
  offsets.matrices.begin = builder.table().elements;
  offsets.q = builder.matrix(prefix + "self_attn.q_proj.weight", queries, width, Split::rows);
  offsets.k = builder.matrix(prefix + "self_attn.k_proj.weight", keys, width, Split::rows);
  offsets.v = builder.matrix(prefix + "self_attn.v_proj.weight", keys, width, Split::rows);
  offsets.o = builder.matrix(prefix + "self_attn.o_proj.weight", width, queries, Split::columns);
  offsets.gate = builder.matrix(prefix + "mlp.gate_proj.weight", model.ffn, width, Split::rows);
  offsets.up = builder.matrix(prefix + "mlp.up_proj.weight", model.ffn, width, Split::rows);
  offsets.down = builder.matrix(prefix + "mlp.down_proj.weight", width, model.ffn, Split::columns);
  offsets.matrices.end = builder.table().elements;
  return offsets;
}

/// Adds a layer's biases, neighbours as their matrices are: one sum makes their gradients.
void add_biases(TableBuilder& builder, const config::Model& model, const std::string& prefix,
                LayerOffsets& offsets) {
  offsets.q_bias = offsets.k_bias = offsets.v_bias = -1;
  if (!model.qkv_bias) return;
  const std::int64_t keys = model.kv_heads * model.head_dim();
  offsets.q_bias = builder.bias(prefix + "self_attn.q_proj.bias", model.query_width());
  offsets.k_bias = builder.bias(prefix + "self_attn.k_proj.bias", keys);
  offsets.v_bias = builder.bias(prefix + "self_attn.v_proj.bias", keys);
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
    add_biases(builder, model, prefixes[layer], table.layers[layer]);
  }
  for (std::size_t layer = 0; layer < prefixes.size(); ++layer) {
    LayerOffsets& offsets = table.layers[layer];
    offsets.input_norm = builder.norm(prefixes[layer] + "input_layernorm.weight", width);
    offsets.post_norm = builder.norm(prefixes[layer] + "post_attention_layernorm.weight", width);
    offsets.q_norm = offsets.k_norm = -1;
    if (!model.qk_norm) continue;
    offsets.q_norm = builder.norm(prefixes[layer] + "self_attn.q_norm.weight", model.head_dim());
    offsets.k_norm = builder.norm(prefixes[layer] + "self_attn.k_norm.weight", model.head_dim());
  }
  if (part.head) table.final_norm = builder.norm("model.norm.weight", width);
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

std::int64_t parameter_elements(const config::Model& m) {
  return make_parameter_table(m, whole_model(m)).elements;
}

std::int64_t optimizer_bytes(config::Dtype dtype, std::int64_t owned) {
  const auto [real, sum] = config::element_bytes(dtype);
  return owned * (real == sum ? 2 : 3) * sum;  // two moments, and masters of rounded weights
}

}  // namespace cadenza::model
