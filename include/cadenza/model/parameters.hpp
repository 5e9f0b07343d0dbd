// SPDX-License-Identifier: Apache-2.0
// Parameters of the transformer: one flat array each for values, gradients and optimizer moments,
// with a table that names its parts as Hugging Face's Llama does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::model {

/// One parameter: [rows, columns] for matrices ([out, in]), [rows] for vectors (columns 0).
struct ParameterInfo {
  std::string name;  ///< e.g. "model.layers.0.self_attn.q_proj.weight"
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t offset = 0;  ///< first element in the flat arrays
  bool is_matrix() const { return columns > 0; }
  std::int64_t count() const { return is_matrix() ? rows * columns : rows; }
};

/// Offsets of a layer's parameters in the flat arrays.
struct LayerOffsets {
  std::int64_t input_norm, q, k, v, o, post_norm, gate, up, down;
};

/// Where everything lies. Matrices come first, so that weight decay is one range.
struct ParameterTable {
  std::vector<ParameterInfo> entries;
  std::vector<LayerOffsets> layers;
  std::int64_t embedding = 0;
  std::int64_t final_norm = 0;
  std::int64_t head = 0;             ///< equals embedding when tied
  std::int64_t matrix_elements = 0;  ///< elements [0, matrix_elements) decay
  std::int64_t elements = 0;
};

ParameterTable make_parameter_table(const config::Model& model);

/// Real is what matrix products read; everything that adds up is kept in Accumulator<Real>.
template <typename Real>
struct Parameters {
  using Sum = Accumulator<Real>;
  ParameterTable table;
  Array<Sum> values;
  Array<Real> working;  ///< values rounded to Real; `values` itself where the types are the same
  Array<Sum> gradients;
  Array<Sum> first_moment;
  Array<Sum> second_moment;
};

/// Allocates and initialises: matrices normal(0, 0.02), norms one. A value depends on (seed, name,
/// element index) alone, so that every layout starts from the same numbers.
template <typename Real>
Parameters<Real> make_parameters(const config::Model& model, std::uint64_t seed,
                                 MemoryLedger& ledger);

/// Rounds all values to `working`: after they were written from outside. Updates do it themselves.
template <typename Real>
void round_working(Parameters<Real>& parameters);

}  // namespace cadenza::model
