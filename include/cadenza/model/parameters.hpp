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
#include "cadenza/model/shape/parameter_table.hpp"

namespace cadenza::model {

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

/// Allocates and initialises: matrices normal(0, 0.02), biases zero, norms one. A value depends
/// only on (seed, name, element's index in the whole parameter), so every layout starts from the
/// same numbers.
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
