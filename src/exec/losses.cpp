// SPDX-License-Identifier: Apache-2.0
#include "exec/losses.hpp"

#include <algorithm>
#include <bit>

namespace cadenza::exec {
namespace {

/// Low bits of a place that its bin ignores: all but the leading three.
int bits_within(std::int64_t place) {
  constexpr int kTold = 3;
  const auto width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(place)));
  return std::max(0, width - kTold);
}

/// Returns the number of the bin of a place; bins in ascending order are numbered without gaps.
std::size_t bin_of(std::int64_t place) {
  const int within = bits_within(place);
  return static_cast<std::size_t>(4 * within + (place >> within));
}

}  // namespace

std::int64_t bin_begin(std::int64_t place) {
  const int within = bits_within(place);
  return place >> within << within;
}

void LossRecord::begin_step(std::int64_t step) {
  step_ = static_cast<std::uint32_t>(step);
  bins_.clear();
  answers_.clear();
}

template <typename Sum>
void LossRecord::add(const RowPlaces& places, Range rows, const model::TokenLosses<Sum>& losses) {
  const auto at = [&](std::int64_t row) { return static_cast<std::size_t>(row - rows.begin); };
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t place = places.places[static_cast<std::size_t>(row)];
    if (place < 0) continue;
    const std::size_t number = bin_of(place);
    if (number >= bins_.size()) bins_.resize(number + 1);
    trace::PositionLoss& bin = bins_[number];
    bin.step = step_;
    bin.position = bin_begin(place);
    ++bin.targets;
    bin.hits += losses.margin[at(row)] == 0 ? 1 : 0;
    bin.loss += static_cast<double>(losses.loss[at(row)]);
  }
  for (const RowPlaces::Answer& answer : places.answers) {
    if (answer.row < rows.begin || answer.row >= rows.end) continue;
    answers_.push_back({step_, losses.margin[at(answer.row)] == 0 ? 1u : 0u, answer.length,
                        answer.question.fact, answer.question.token + 1,
                        static_cast<double>(losses.loss[at(answer.row)])});
  }
}

std::vector<trace::PositionLoss> LossRecord::positions() const {
  std::vector<trace::PositionLoss> found = bins_;
  std::erase_if(found, [](const trace::PositionLoss& bin) { return bin.targets == 0; });
  return found;
}

template void LossRecord::add(const RowPlaces&, Range, const model::TokenLosses<float>&);
template void LossRecord::add(const RowPlaces&, Range, const model::TokenLosses<double>&);

}  // namespace cadenza::exec
