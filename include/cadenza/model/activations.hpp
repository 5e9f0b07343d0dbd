// SPDX-License-Identifier: Apache-2.0
// The activations of a rank's part of the model (model/shape/activations.hpp) on the device.
#pragma once

#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/shape/activations.hpp"

namespace cadenza::model {

template <typename Real>
using LayerActivations = LayerArrays<Real, Accumulator<Real>, Array>;
template <typename Real>
using ActivationBuffer = BufferArrays<Real, Accumulator<Real>, Array>;
template <typename Real>
using Activations = ActivationArrays<Real, Accumulator<Real>, Array>;

/// Allocates all arrays, entered in the ledger as MemoryKind::activations: activation_bytes().
template <typename Real>
Activations<Real> make_activations(const config::Model& model, const ModelPart& part,
                                   const Capacity& capacity, config::Recompute recompute,
                                   MemoryLedger& ledger);

}  // namespace cadenza::model
