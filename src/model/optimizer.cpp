// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/parameters.hpp"

#include <cmath>
#include <numbers>
#include <type_traits>

#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {
namespace {

/// The scalars of one update, in double; kernels use them as the accumulator.
struct AdamwStep {
  double rate, beta1, beta2, correction1, correction2, eps, decay, scale;
};

/// Returns the masters of the elements from `element` on, which is number `owned` of those that the
/// rank owns: if the types are equal, the weights are their own masters.
template <typename Real>
Accumulator<Real>* masters_of(const Parameters<Real>& p, std::int64_t element, std::int64_t owned) {
  if constexpr (std::is_same_v<Real, Accumulator<Real>>) {
    return p.weights.data() + element;
  } else {
    return p.masters.data() + owned;
  }
}

/// Updates the parameters of `range` in one pass: masters, moments and weights.
/// @param owned  number of its first element among those that the rank owns
template <typename Real>
void update(const Parameters<Real>& p, Range range, std::int64_t owned, const AdamwStep& s) {
  using Sum = Accumulator<Real>;
  const Sum beta1 = static_cast<Sum>(s.beta1), beta2 = static_cast<Sum>(s.beta2);
  const Sum rest1 = static_cast<Sum>(1.0 - s.beta1), rest2 = static_cast<Sum>(1.0 - s.beta2);
  const Sum size = static_cast<Sum>(s.rate / s.correction1);
  const Sum root = static_cast<Sum>(1.0 / std::sqrt(s.correction2));
  const Sum eps = static_cast<Sum>(s.eps), scale = static_cast<Sum>(s.scale);
  const Sum keep = static_cast<Sum>(1.0 - s.rate * s.decay);
  Sum* masters = masters_of(p, range.begin, owned);
  Sum* first_moment = p.first_moment.data() + owned;
  Sum* second_moment = p.second_moment.data() + owned;
  const Sum* gradients = p.gradients.data() + range.begin;
  Real* weights = p.weights.data() + range.begin;
  for_elements(
      "adamw", range.size(), KOKKOS_LAMBDA(const std::int64_t i) {
        const Sum g = gradients[i] * scale;
        const Sum m = beta1 * first_moment[i] + rest1 * g;
        const Sum v = beta2 * second_moment[i] + rest2 * g * g;
        first_moment[i] = m;
        second_moment[i] = v;
        const Sum value = masters[i] * keep - size * m / (Kokkos::sqrt(v) * root + eps);
        masters[i] = value;
        narrow(value, weights[i]);  // the same element if the types are equal
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
double squared_gradient_norm(const Parameters<Real>& p) {
  const bool first = p.table.tensor_rank == 0;
  const Range counted{0, first ? p.table.elements : p.table.sliced_elements};
  double sum = 0;
  for (const Range& owned : p.owned) {
    const Range range = intersect(owned, counted);
    if (!range.empty()) sum += sum_of_squares(p.gradients.data() + range.begin, range.size());
  }
  return sum;
}

template <typename Real>
void adamw(Parameters<Real>& p, const config::Optimizer& optimizer, double rate, double norm,
           std::int64_t step) {
  const double beta1 = optimizer.betas[0];
  const double beta2 = optimizer.betas[1];
  const double updates = static_cast<double>(step + 1);
  const bool clips = optimizer.clip > 0 && norm > optimizer.clip;
  const AdamwStep s{rate,
                    beta1,
                    beta2,
                    1.0 - std::pow(beta1, updates),
                    1.0 - std::pow(beta2, updates),
                    optimizer.eps,
                    optimizer.weight_decay,
                    clips ? optimizer.clip / norm : 1.0};
  const Range matrices{0, p.table.matrix_elements};
  const Range vectors{matrices.end, p.table.elements};
  AdamwStep without_decay = s;
  without_decay.decay = 0;
  std::int64_t moment = 0;
  for (const Range& owned : p.owned) {
    const Range decaying = intersect(owned, matrices);
    const Range others = intersect(owned, vectors);
    if (!decaying.empty()) update(p, decaying, moment, s);
    if (!others.empty()) update(p, others, moment + others.begin - owned.begin, without_decay);
    moment += owned.size();
  }
}

#define CADENZA_INSTANTIATE(Real)                                 \
  template double squared_gradient_norm(const Parameters<Real>&); \
  template void adamw(Parameters<Real>&, const config::Optimizer&, double, double, std::int64_t);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
