// SPDX-License-Identifier: Apache-2.0
// The parameters of a rank's part of the model: a table that names them as Hugging Face's Llama
// does, and their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/model/shape/part.hpp"

namespace cadenza::model {

/// This rank's block of one parameter: [rows, columns] of a matrix [out, in], [rows] of a vector
/// (columns 0), and the block's place in the whole.
struct ParameterInfo {
  std::string name;  ///< e.g. "model.layers.0.self_attn.q_proj.weight"
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t offset = 0;  ///< first element in the flat arrays
  std::int64_t row_begin = 0;
  std::int64_t column_begin = 0;
  std::int64_t whole_rows = 0;
  std::int64_t whole_columns = 0;  ///< 0: a vector
  bool replicated = false;         ///< every rank of a tensor group has the whole parameter: norms
  bool is_matrix() const { return columns > 0; }
  std::int64_t count() const { return is_matrix() ? rows * columns : rows; }
  std::int64_t whole_count() const { return is_matrix() ? whole_rows * whole_columns : whole_rows; }
};

/// Offsets of a layer's parameters in the flat arrays.
struct LayerOffsets {
  std::int64_t input_norm, q, k, v, o, post_norm, gate, up, down;
  std::int64_t q_bias, k_bias, v_bias;  ///< neighbours in this order; -1: the model has none
  std::int64_t q_norm, k_norm;          ///< neighbours in this order; -1: the model has none
  Range matrices;                       ///< all but the biases and norms
};

/// Layout of the flat arrays: matrices, biases, norms. So weight decay is one range, and what a
/// tensor group divides is one.
struct ParameterTable {
  std::vector<ParameterInfo> entries;
  std::vector<LayerOffsets> layers;  ///< local layers, counted through all chunks
  std::int64_t embedding = -1;       ///< -1: not in this part
  std::int64_t final_norm = -1;      ///< -1: not in this part
  std::int64_t head = -1;            ///< equals embedding when tied; -1: not in this part
  std::int64_t matrix_elements = 0;  ///< elements [0, matrix_elements) decay
  std::int64_t sliced_elements = 0;  ///< after them, every rank of a tensor group has the same
  std::int64_t elements = 0;
  int tensor_rank = 0;
};

ParameterTable make_parameter_table(const config::Model& model, const ModelPart& part);

/// The matrices of a local layer, which the overlapped reduction sums when their gradients are
/// done.
Range layer_elements(const ParameterTable& table, int layer);
/// All other elements, in order.
std::vector<Range> remaining_elements(const ParameterTable& table);
/// All elements as one range: what a rank owns if optimizer state is not shared.
std::vector<Range> all_elements(const ParameterTable& table);

/// Number of elements of all parameters of the model.
std::int64_t parameter_elements(const config::Model& model);

/// Bytes of the masters and moments of so many elements, in a run of this type.
std::int64_t optimizer_bytes(config::Dtype dtype, std::int64_t owned);

}  // namespace cadenza::model
