// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/optimizer.hpp"

#include <cmath>
#include <numbers>

#include "cadenza/model/layers.hpp"

namespace cadenza::model {
namespace {

/// The scalars of one update, in double; kernels use them as Real.
struct AdamwStep {
  double rate, beta1, beta2, correction1, correction2, eps, decay, scale;
};

template <typename Real>
void update(Real* values, const Real* gradients, Real* first, Real* second, std::int64_t count,
            const AdamwStep& s) {
  const Real beta1 = static_cast<Real>(s.beta1), beta2 = static_cast<Real>(s.beta2);
  const Real rest1 = static_cast<Real>(1.0 - s.beta1), rest2 = static_cast<Real>(1.0 - s.beta2);
  const Real size = static_cast<Real>(s.rate / s.correction1);
  const Real root = static_cast<Real>(1.0 / std::sqrt(s.correction2));
  const Real eps = static_cast<Real>(s.eps), scale = static_cast<Real>(s.scale);
  const Real keep = static_cast<Real>(1.0 - s.rate * s.decay);
  Kokkos::parallel_for(
      "adamw", Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0, count),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const Real g = gradients[i] * scale;
        const Real m = beta1 * first[i] + rest1 * g;
        const Real v = beta2 * second[i] + rest2 * g * g;
        first[i] = m;
        second[i] = v;
        values[i] = values[i] * keep - size * m / (Kokkos::sqrt(v) * root + eps);
      });
}

}  // namespace

double learning_rate(const config::Optimizer& optimizer, std::int64_t step, std::int64_t steps) {
  if (step < optimizer.warmup) {
    return optimizer.lr * static_cast<double>(step + 1) / static_cast<double>(optimizer.warmup);
  }
  if (optimizer.schedule == config::Schedule::constant) return optimizer.lr;
  const double progress =
      static_cast<double>(step - optimizer.warmup) / static_cast<double>(steps - optimizer.warmup);
  return optimizer.lr * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

template <typename Real>
double gradient_norm(const Parameters<Real>& parameters) {
  return std::sqrt(sum_of_squares(parameters.gradients.data(), parameters.table.elements));
}

template <typename Real>
void adamw(Parameters<Real>& p, const config::Optimizer& optimizer, double rate, double norm,
           std::int64_t step) {
  const double beta1 = optimizer.betas[0];
  const double beta2 = optimizer.betas[1];
  const double updates = static_cast<double>(step + 1);
  const bool clips = optimizer.clip > 0 && norm > optimizer.clip;
  AdamwStep s{rate,
              beta1,
              beta2,
              1.0 - std::pow(beta1, updates),
              1.0 - std::pow(beta2, updates),
              optimizer.eps,
              optimizer.weight_decay,
              clips ? optimizer.clip / norm : 1.0};
  const std::int64_t matrices = p.table.matrix_elements;
  update(p.values.data(), p.gradients.data(), p.first_moment.data(), p.second_moment.data(),
         matrices, s);
  s.decay = 0;
  update(p.values.data() + matrices, p.gradients.data() + matrices,
         p.first_moment.data() + matrices, p.second_moment.data() + matrices,
         p.table.elements - matrices, s);
}

template double gradient_norm(const Parameters<float>&);
template double gradient_norm(const Parameters<double>&);
template void adamw(Parameters<float>&, const config::Optimizer&, double, double, std::int64_t);
template void adamw(Parameters<double>&, const config::Optimizer&, double, double, std::int64_t);

}  // namespace cadenza::model
