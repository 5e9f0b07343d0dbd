// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/optimizer.hpp"

#include <cmath>
#include <numbers>

#include "cadenza/model/layers.hpp"
#include "vector_loops.hpp"

namespace cadenza::model {
namespace {

/// The scalars of one update, in double; kernels use them as the accumulator.
struct AdamwStep {
  double rate, beta1, beta2, correction1, correction2, eps, decay, scale;
};

/// Parameters [first, first + count): weights, moments and the rounded weights in one pass.
template <typename Real>
void update(const Parameters<Real>& p, std::int64_t first, std::int64_t count, const AdamwStep& s) {
  using Sum = Accumulator<Real>;
  const Sum beta1 = static_cast<Sum>(s.beta1), beta2 = static_cast<Sum>(s.beta2);
  const Sum rest1 = static_cast<Sum>(1.0 - s.beta1), rest2 = static_cast<Sum>(1.0 - s.beta2);
  const Sum size = static_cast<Sum>(s.rate / s.correction1);
  const Sum root = static_cast<Sum>(1.0 / std::sqrt(s.correction2));
  const Sum eps = static_cast<Sum>(s.eps), scale = static_cast<Sum>(s.scale);
  const Sum keep = static_cast<Sum>(1.0 - s.rate * s.decay);
  Sum* values = p.values.data() + first;
  Sum* first_moment = p.first_moment.data() + first;
  Sum* second_moment = p.second_moment.data() + first;
  const Sum* gradients = p.gradients.data() + first;
  Real* working = p.working.data() + first;
  for_elements(
      "adamw", count, KOKKOS_LAMBDA(const std::int64_t i) {
        const Sum g = gradients[i] * scale;
        const Sum m = beta1 * first_moment[i] + rest1 * g;
        const Sum v = beta2 * second_moment[i] + rest2 * g * g;
        first_moment[i] = m;
        second_moment[i] = v;
        const Sum value = values[i] * keep - size * m / (Kokkos::sqrt(v) * root + eps);
        values[i] = value;
        narrow(value, working[i]);  // where the types are the same, the same element
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
  update(p, 0, matrices, s);
  s.decay = 0;
  update(p, matrices, p.table.elements - matrices, s);
}

#define CADENZA_INSTANTIATE(Real)                         \
  template double gradient_norm(const Parameters<Real>&); \
  template void adamw(Parameters<Real>&, const config::Optimizer&, double, double, std::int64_t);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
