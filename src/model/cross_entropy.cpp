// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {
namespace {

/// Replaces values by exp(values - largest). @return their sum
template <typename Sum>
KOKKOS_INLINE_FUNCTION double exponentiate(const Team& team, Sum* values, std::int64_t vocab,
                                           Sum largest) {
  return sum_columns(team, vocab, [=](const std::int64_t v) {
    const Sum power = exponential(values[v] - largest);
    values[v] = power;
    return static_cast<double>(power);
  });
}

/// Writes scale * (exponentials / sum - onehot); `target` may lie outside [0, vocab).
template <typename Real>
KOKKOS_INLINE_FUNCTION void write_gradient(const Team& team, const Accumulator<Real>* exponentials,
                                           std::int64_t vocab, std::int64_t target, double sum,
                                           double scale, Real* gradient) {
  using Sum = Accumulator<Real>;
  const Sum factor = static_cast<Sum>(scale / sum);
  const Sum wanted = static_cast<Sum>(scale);
  for_columns(team, vocab, [=](const std::int64_t v) {
    narrow(exponentials[v] * factor - (v == target ? wanted : Sum(0)), gradient[v]);
  });
}

template <typename Real>
KOKKOS_INLINE_FUNCTION void write_nothing(const Team& team, std::int64_t vocab, Real* gradient) {
  for_columns(team, vocab,
              [=](const std::int64_t v) { narrow(Accumulator<Real>(0), gradient[v]); });
}

/// Writes the optional losses of a row. @return its loss: log(sum) - margin
template <typename Sum>
KOKKOS_INLINE_FUNCTION double row_loss(const Team& team, const RowLosses<Sum>& losses,
                                       std::int64_t row, double sum, Sum margin) {
  const double loss = Kokkos::log(sum) - static_cast<double>(margin);
  if (losses.loss != nullptr) {
    Kokkos::single(Kokkos::PerTeam(team), [&]() {
      losses.loss[row] = static_cast<Sum>(loss);
      losses.margin[row] = margin;
    });
  }
  return loss;
}

/// Returns the sum of loss(team, row) over rows.
template <typename F>
double sum_rows(const char* label, std::int64_t rows, const F& loss) {
  return ordered_sum(
      label, rows, kTeamRows,
      KOKKOS_LAMBDA(const Team& team, const std::int64_t first, const std::int64_t last) {
        double sum = 0;
        for (std::int64_t row = first; row < last; ++row) sum += loss(team, row);
        return sum;
      });
}

/// Handles one row, which stays in the second-level cache between its passes.
template <typename Real>
struct CrossEntropy {
  using Sum = Accumulator<Real>;
  Sum* logits;
  const std::int32_t* targets;
  std::int64_t vocab;
  double scale;
  Real* dlogits;
  RowLosses<Sum> losses;

  KOKKOS_FUNCTION double operator()(const Team& team, std::int64_t row) const {
    Sum* values = logits + row * vocab;
    Real* gradient = dlogits + row * vocab;
    const std::int32_t target = targets[row];
    if (target < 0) {
      write_nothing(team, vocab, gradient);
      return 0;
    }
    const Sum largest =
        largest_column<Sum>(team, vocab, [=](const std::int64_t v) { return values[v]; });
    const Sum picked = values[target] - largest;
    team.team_barrier();
    const double sum = exponentiate(team, values, vocab, largest);
    write_gradient(team, values, vocab, target, sum, scale, gradient);
    return row_loss(team, losses, row, sum, picked);
  }
};

/// Computes the gradient and loss of a row with reduced statistics.
template <typename Real>
struct SliceGradient {
  using Sum = Accumulator<Real>;
  const Sum* exponentials;
  const std::int32_t* targets;
  Range vocab;
  double scale;
  RowStatistics<Sum> statistics;
  Real* dlogits;
  RowLosses<Sum> losses;

  KOKKOS_FUNCTION double operator()(const Team& team, std::int64_t row) const {
    const std::int64_t width = vocab.end - vocab.begin;
    Real* gradient = dlogits + row * width;
    if (targets[row] < 0) {
      write_nothing(team, width, gradient);
      return 0;
    }
    const double sum = static_cast<double>(statistics.sum[row]);
    write_gradient(team, exponentials + row * width, width, targets[row] - vocab.begin, sum, scale,
                   gradient);
    return row_loss(team, losses, row, sum, statistics.picked[row]);
  }
};

}  // namespace

template <typename Real>
double cross_entropy(Accumulator<Real>* logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t vocab, double scale, Real* dlogits,
                     const RowLosses<Accumulator<Real>>& losses) {
  return sum_rows("cross_entropy", rows,
                  CrossEntropy<Real>{logits, targets, vocab, scale, dlogits, losses});
}

template <typename Sum>
void slice_largest(const Sum* logits, const std::int32_t* targets, std::int64_t rows, Range vocab,
                   const RowStatistics<Sum>& statistics) {
  const std::int64_t width = vocab.size();
  Sum* largest = statistics.largest;
  for_rows(
      "slice_largest", rows, KOKKOS_LAMBDA(const Team& team, const std::int64_t row) {
        const Sum* values = logits + row * width;
        Sum top = 0;
        if (targets[row] >= 0) {
          top = largest_column<Sum>(team, width, [=](const std::int64_t v) { return values[v]; });
        }
        Kokkos::single(Kokkos::PerTeam(team), [&]() { largest[row] = top; });
      });
}

template <typename Sum>
void slice_sums(Sum* logits, const std::int32_t* targets, std::int64_t rows, Range vocab,
                const RowStatistics<Sum>& statistics) {
  const std::int64_t width = vocab.size();
  const RowStatistics<Sum> to = statistics;
  for_rows(
      "slice_sums", rows, KOKKOS_LAMBDA(const Team& team, const std::int64_t row) {
        Sum* values = logits + row * width;
        const std::int64_t target = targets[row];
        const bool here = target >= vocab.begin && target < vocab.end;
        const Sum picked = here ? values[target - vocab.begin] - to.largest[row] : Sum(0);
        team.team_barrier();
        double sum = 0;
        if (target >= 0) sum = exponentiate(team, values, width, to.largest[row]);
        Kokkos::single(Kokkos::PerTeam(team), [&]() {
          to.sum[row] = static_cast<Sum>(sum);
          to.picked[row] = picked;
        });
      });
}

template <typename Real>
double slice_gradient(const Accumulator<Real>* exponentials, const std::int32_t* targets,
                      std::int64_t rows, Range vocab, double scale,
                      const RowStatistics<Accumulator<Real>>& statistics, Real* dlogits,
                      const RowLosses<Accumulator<Real>>& losses) {
  return sum_rows(
      "slice_gradient", rows,
      SliceGradient<Real>{exponentials, targets, vocab, scale, statistics, dlogits, losses});
}

#define CADENZA_INSTANTIATE(Real)                                                                  \
  template double cross_entropy(Accumulator<Real>*, const std::int32_t*, std::int64_t,             \
                                std::int64_t, double, Real*, const RowLosses<Accumulator<Real>>&); \
  template double slice_gradient(const Accumulator<Real>*, const std::int32_t*, std::int64_t,      \
                                 Range, double, const RowStatistics<Accumulator<Real>>&, Real*,    \
                                 const RowLosses<Accumulator<Real>>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE
#define CADENZA_INSTANTIATE(Sum)                                                    \
  template void slice_largest(const Sum*, const std::int32_t*, std::int64_t, Range, \
                              const RowStatistics<Sum>&);                           \
  template void slice_sums(Sum*, const std::int32_t*, std::int64_t, Range,          \
                           const RowStatistics<Sum>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
