// SPDX-License-Identifier: Apache-2.0
// Stores the estimates by which plans of sparse attention are weighed, so that a resumed run makes
// the same plans as an uninterrupted one.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cadenza/base/at.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::model {
namespace {

using Place = std::array<std::int64_t, 3>;  // which estimate, layer, digits
using Shares = SparseEstimate::Shares;

[[noreturn]] void refuse(const storage::File& file, const char* dataset, const std::string& found,
                         const std::string& valid) {
  fail(ExitCode::data, "{}: is damaged: {} has {}; valid: {}", file.path(), dataset, found, valid);
}

void require_places(const storage::File& file, std::span<const Place> places,
                    const config::Model& model) {
  for (std::size_t row = 0; row < places.size(); ++row) {
    const auto [which, layer, digits] = places[row];
    const bool known = which >= 0 && which <= 1 && layer >= 0 && layer < model.layers &&
                       digits >= 1 && digits <= SparsePlace::kDigits;
    if (known && (row == 0 || places[row - 1] < places[row])) continue;
    refuse(file, kEstimatePlaces, fmt::format("({}, {}, {}) in row {}", which, layer, digits, row),
           fmt::format("ascending rows of 0 or 1, a layer below {} and 1 to {} binary digits",
                       model.layers, SparsePlace::kDigits));
  }
}

void require_shares(const storage::File& file, std::span<const Shares> shares) {
  for (std::size_t row = 0; row < shares.size(); ++row) {
    for (const double share : shares[row]) {
      if (share >= 0 && share <= 1) continue;  // NaN compares as false
      refuse(file, kEstimateShares, fmt::format("{} in row {}", share, row), "shares from 0 to 1");
    }
  }
}

/// Returns rows of N numbers.
template <typename Row>
std::vector<Row> rows_of(const storage::File& file, const char* dataset, hsize_t rows) {
  const auto values = file.read<typename Row::value_type>(dataset, {rows, std::tuple_size_v<Row>});
  std::vector<Row> all(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < all.size(); ++row) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * all[row].size()),
                all[row].size(), all[row].begin());
  }
  return all;
}

}  // namespace

void CheckpointWriter::write(const SparseEstimates& estimates) {
  std::vector<Place> places;
  std::vector<Shares> shares;
  for (const SparseEstimate* estimate : {&estimates.next, &estimates.after}) {
    for (const auto& [place, values] : estimate->shares()) {
      places.push_back({estimate == &estimates.next ? 0 : 1, place.layer, place.digits});
      shares.push_back(values);
    }
  }
  if (places.empty()) return;
  const auto rows = static_cast<hsize_t>(places.size());
  output_->file().write(kEstimatePlaces, {rows, places.front().size()}, places.front().data());
  output_->file().write(kEstimateShares, {rows, shares.front().size()}, shares.front().data());
}

SparseEstimates CheckpointReader::estimates(const config::Model& model) const {
  if (!file_->contains(kEstimatePlaces) && !file_->contains(kEstimateShares)) return {};
  const storage::Shape shape = file_->shape(kEstimatePlaces);
  const hsize_t rows = shape.empty() ? 0 : shape.front();
  const auto most = static_cast<hsize_t>(2 * model.layers * SparsePlace::kDigits);
  if (rows > most) {  // a small file may hold any number of equal rows
    refuse(*file_, kEstimatePlaces, fmt::format("{} rows", rows), fmt::format("at most {}", most));
  }
  const auto places = rows_of<Place>(*file_, kEstimatePlaces, rows);
  const auto shares = rows_of<Shares>(*file_, kEstimateShares, rows);
  require_places(*file_, places, model);
  require_shares(*file_, shares);
  std::array<std::map<SparsePlace, Shares>, 2> found;
  for (std::size_t row = 0; row < places.size(); ++row) {
    const auto [which, layer, digits] = places[row];
    found[at(which)].emplace(SparsePlace{static_cast<int>(layer), static_cast<int>(digits)},
                             shares[row]);
  }
  return {SparseEstimate(std::move(found[0])), SparseEstimate(std::move(found[1]))};
}

}  // namespace cadenza::model
