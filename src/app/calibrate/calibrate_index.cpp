// SPDX-License-Identifier: Apache-2.0
// Measures the index rounds of sparse attention in real training steps.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "app/calibrate/calibration.hpp"
#include "app/calibrate/measure.hpp"
#include "cadenza/plan/index.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::app {
namespace {

using plan::IndexRound;

/// Rounds in which a single rank works, in their order in each layer.
constexpr std::array kIndexRounds = {IndexRound::observed, IndexRound::peak, IndexRound::sum,
                                     IndexRound::mass};
constexpr std::array kNames = {"logits", "sums", "masses", "choice"};

/// Returns the documents whose index is measured; the last one is for the check.
std::array<std::int64_t, 2> document_rows(std::int64_t rows) {
  return {rows, std::max<std::int64_t>(2, rows / 2)};
}

/// Returns an experiment with one document per step and a pattern that leaves out most of it.
config::Experiment sparse_rank(const config::Experiment& experiment, std::int64_t rows) {
  config::Experiment alone = one_rank(experiment, rows);
  alone.data.lengths.median = static_cast<double>(rows);
  alone.attention.kind = config::AttentionKind::vertical_slash;
  config::SparseAttention& sparse = alone.attention.sparse;
  sparse.columns = std::max<std::int64_t>(1, rows / 128);
  sparse.slashes = std::max<std::int64_t>(1, rows / 2048);
  sparse.sinks = sparse.window = sparse.dense_below = 0;
  return alone;
}

cost::IndexWork work_of(IndexRound round, const config::Model& model, std::int64_t rows) {
  return plan::vertical_slash_work(round, static_cast<double>(rows * model.heads),
                                   static_cast<int>(model.head_dim()));
}

}  // namespace

template <typename Real>
void Calibration<Real>::add_index() {
  for (const std::int64_t rows : document_rows(rows_)) {
    std::vector<Rounds>& rounds = index_rounds_[rows];
    if (!rounds.empty()) continue;  // so few rows that both sizes are one
    rounds.resize(kIndexRounds.size());
    Work work{fmt::format("index of {} rows", rows), [this, rows] { measure_index(rows); }, {}};
    for (const Rounds& of : rounds) work.rounds.push_back(&of);
    works_.push_back(std::move(work));
  }
}

template <typename Real>
void Calibration<Real>::measure_index(std::int64_t rows) {
  const auto self = comm::make_self();
  const std::vector<OperationTime> events =
      named(run_steps<Real>(world_, *self, sparse_rank(experiment_, rows), kSteps), "estimate");
  for (std::size_t round = 0; round < kIndexRounds.size(); ++round) {
    std::vector<double> seconds;
    for (std::size_t i = round; i < events.size(); i += kIndexRounds.size()) {
      seconds.push_back(events[i].seconds);
    }
    index_rounds_.at(rows)[round].add(mean_over_ranks(world_, median(seconds)));
  }
}

template <typename Real>
void Calibration<Real>::fit_index() {
  const std::int64_t rows = document_rows(rows_).front();
  const std::vector<Rounds>& rounds = index_rounds_.at(rows);
  const auto work = [&](IndexRound round) { return work_of(round, experiment_.model, rows); };
  const double passes = work(IndexRound::peak).scores + work(IndexRound::sum).scores;
  machine_.attention.index = {rounded(work(IndexRound::observed).flops / rounds[0].seconds()),
                              rounded(passes / (rounds[1].seconds() + rounds[2].seconds())),
                              rounded(work(IndexRound::mass).masses / rounds[3].seconds())};
}

template <typename Real>
void Calibration<Real>::check_index() {
  const std::int64_t rows = document_rows(rows_).back();
  const simulate::Costs costs(machine_, experiment_, program::Layout(one_rank(experiment_, rows)));
  for (std::size_t round = 0; round < kIndexRounds.size(); ++round) {
    operation_error_.add(fmt::format("index {} of {} rows", kNames[round], rows),
                         costs.index_seconds(work_of(kIndexRounds[round], experiment_.model, rows)),
                         index_rounds_.at(rows)[round].seconds());
  }
}

#define CADENZA_INSTANTIATE(Real)               \
  template void Calibration<Real>::add_index(); \
  template void Calibration<Real>::fit_index(); \
  template void Calibration<Real>::check_index();
CADENZA_INSTANTIATE(bfloat16)
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::app
