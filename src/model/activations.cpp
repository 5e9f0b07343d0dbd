// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/activations.hpp"

#include "model/shape/activation_builder.hpp"

namespace cadenza::model {

template <typename Real>
Activations<Real> make_activations(const config::Model& model, const ModelPart& part,
                                   const Capacity& capacity, config::Recompute recompute,
                                   MemoryLedger& ledger) {
  const auto make = [&]<typename T>(Array<T>& array, const char* label, std::int64_t count) {
    array = allocate<T>(ledger, MemoryKind::activations, label, count);
  };
  return ActivationBuilder<Real, Accumulator<Real>, Array, decltype(make)>(model, part, capacity,
                                                                           recompute, make)
      .build();
}

#define CADENZA_INSTANTIATE(Real)                    \
  template Activations<Real> make_activations<Real>( \
      const config::Model&, const ModelPart&, const Capacity&, config::Recompute, MemoryLedger&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
