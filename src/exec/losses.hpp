// SPDX-License-Identifier: Apache-2.0
// Losses of a step by the position of the target in its document, and losses of answers to
// questions: rows of this rank's trace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/model/llama.hpp"
#include "cadenza/trace/event.hpp"
#include "exec/microbatch.hpp"

namespace cadenza::exec {

class LossRecord {
 public:
  void begin_step(std::int64_t step);
  /// @param rows    rows of the microbatch that `places` describes
  /// @param losses  of these rows
  template <typename Sum>
  void add(const RowPlaces& places, Range rows, const model::TokenLosses<Sum>& losses);

  /// Losses in bins of ascending place, four per doubling; empty bins are left out.
  std::vector<trace::PositionLoss> positions() const;
  std::span<const trace::AnswerLoss> answers() const { return answers_; }

 private:
  std::uint32_t step_ = 0;
  std::vector<trace::PositionLoss> bins_;
  std::vector<trace::AnswerLoss> answers_;
};

/// First place of the bin that contains `place`: 0 to 8, 10, 12, 14, 16, 20, 24, 28, 32, ...
std::int64_t bin_begin(std::int64_t place);

}  // namespace cadenza::exec
