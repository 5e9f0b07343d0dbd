// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/layers.hpp"
#include "vector_loops.hpp"

namespace cadenza::model {
namespace {

/// One row; a row of a chunk of logits stays in the second-level cache between its passes.
template <typename Real>
struct CrossEntropy {
  using Sum = Accumulator<Real>;
  Sum* logits;
  const std::int32_t* targets;
  std::int64_t rows;
  std::int64_t vocab;
  double scale;
  Real* dlogits;

  KOKKOS_FUNCTION void operator()(const Team& team, double& loss) const {
    const std::int64_t first = team.league_rank() * kTeamRows;
    const std::int64_t last = first + kTeamRows < rows ? first + kTeamRows : rows;
    for (std::int64_t row = first; row < last; ++row) {
      const double part = run(team, row);
      Kokkos::single(Kokkos::PerTeam(team), [&]() { loss += part; });
    }
  }

  KOKKOS_FUNCTION double run(const Team& team, std::int64_t row) const {
    Sum* values = logits + row * vocab;
    Real* gradient = dlogits + row * vocab;
    const std::int32_t target = targets[row];
    if (target < 0) {
      for_columns(team, vocab, [=](const std::int64_t v) { narrow(Sum(0), gradient[v]); });
      return 0;
    }
    const Sum largest =
        largest_column<Sum>(team, vocab, [=](const std::int64_t v) { return values[v]; });
    const Sum picked = values[target] - largest;
    team.team_barrier();
    const double sum = sum_columns(team, vocab, [=](const std::int64_t v) {
      const Sum power = exponential(values[v] - largest);
      values[v] = power;
      return static_cast<double>(power);
    });
    const Sum factor = static_cast<Sum>(scale / sum);
    const Sum wanted = static_cast<Sum>(scale);
    for_columns(team, vocab, [=](const std::int64_t v) {
      narrow(values[v] * factor - (v == target ? wanted : Sum(0)), gradient[v]);
    });
    return Kokkos::log(sum) - static_cast<double>(picked);
  }
};

}  // namespace

template <typename Real>
double cross_entropy(Accumulator<Real>* logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t vocab, double scale, Real* dlogits) {
  double total = 0;
  Kokkos::parallel_reduce("cross_entropy", teams(rows, kTeamRows),
                          CrossEntropy<Real>{logits, targets, rows, vocab, scale, dlogits}, total);
  return total;
}

template double cross_entropy(float*, const std::int32_t*, std::int64_t, std::int64_t, double,
                              float*);
template double cross_entropy(double*, const std::int32_t*, std::int64_t, std::int64_t, double,
                              double*);
template double cross_entropy(float*, const std::int32_t*, std::int64_t, std::int64_t, double,
                              bfloat16*);

}  // namespace cadenza::model
