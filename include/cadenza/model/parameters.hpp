// SPDX-License-Identifier: Apache-2.0
// Parameters of the transformer and their optimizer: one flat array each for weights, gradients and
// what the optimizer keeps, and a table that names their parts as Hugging Face's Llama does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/part.hpp"

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
  bool replicated = false;  ///< every rank of a tensor group has the whole parameter: vectors
  bool is_matrix() const { return columns > 0; }
  std::int64_t count() const { return is_matrix() ? rows * columns : rows; }
  std::int64_t whole_count() const { return is_matrix() ? whole_rows * whole_columns : whole_rows; }
};

/// Offsets of a layer's parameters in the flat arrays.
struct LayerOffsets {
  std::int64_t input_norm, q, k, v, o, post_norm, gate, up, down;
  Range matrices;  ///< all but the norms
};

/// Layout of the flat arrays. Matrices come first, so that weight decay is one range.
struct ParameterTable {
  std::vector<ParameterInfo> entries;
  std::vector<LayerOffsets> layers;  ///< local layers, counted through all chunks
  std::int64_t embedding = -1;       ///< -1: not in this part
  std::int64_t final_norm = -1;      ///< -1: not in this part
  std::int64_t head = -1;            ///< equals embedding when tied; -1: not in this part
  std::int64_t matrix_elements = 0;  ///< elements [0, matrix_elements) decay; norms follow
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

/// Real is the input type of matrix products; all sums are kept in Accumulator<Real>.
template <typename Real>
struct Parameters {
  using Sum = Accumulator<Real>;
  ParameterTable table;
  std::vector<Range> owned;  ///< ranges of the flat arrays that this rank updates, in order
  Array<Real> weights;       ///< all elements, as the model reads them
  Array<Sum> gradients;      ///< of all elements
  // Of the owned elements, one range after another:
  Array<Sum> masters;  ///< the weights before rounding; none if the types are equal
  Array<Sum> first_moment;
  Array<Sum> second_moment;
};

/// Allocates and initialises: matrices normal(0, 0.02), norms one. A value depends only on (seed,
/// name, element's index in the whole parameter), so every layout starts from the same numbers.
/// @param owned  disjoint, in order: all_elements(), or this rank's share (ZeRO-1)
/// @param gradients  whether there are any; not in an evaluation
template <typename Real>
Parameters<Real> make_parameters(const config::Model& model, const ModelPart& part,
                                 std::uint64_t seed, MemoryLedger& ledger,
                                 const std::vector<Range>& owned, bool gradients = true);

/// Sets the weights of `elements`, and the masters of those that are owned.
/// @param values  of these elements, in host memory
template <typename Real>
void set_weights(Parameters<Real>& parameters, Range elements, const Accumulator<Real>* values);

/// Copies a rank's block into the whole parameter, both in host memory.
template <typename Sum>
void place_block(const ParameterInfo& info, const Sum* block, Sum* whole);

// --- AdamW with decoupled decay (arXiv 1711.05101), clipping by global norm, learning rates ---

/// Returns the learning rate of step s (from 0): linear warm-up lr (s + 1) / warmup, then constant
/// or a cosine to zero at `steps`.
double learning_rate(const config::Optimizer& optimizer, std::int64_t step, std::int64_t steps);

/// Returns the sum of squares of the owned gradients, in double. Parameters that every rank of a
/// tensor group has count on its rank 0 only, so the sum over ranks that own different elements is
/// the squared global norm.
template <typename Real>
double squared_gradient_norm(const Parameters<Real>& parameters);

/// Updates the owned elements with gradients scaled by min(1, clip / norm): masters, moments and
/// weights in one pass. Decay acts on matrices only.
/// @param norm  global L2 norm of the gradients
/// @param step  from 0 (bias correction uses step + 1)
template <typename Real>
void adamw(Parameters<Real>& parameters, const config::Optimizer& optimizer, double rate,
           double norm, std::int64_t step);

}  // namespace cadenza::model
