// SPDX-License-Identifier: Apache-2.0
// The index of sparse attention in files of cadenza attend (docs/attend.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/sparse_index.hpp"
#include "cadenza/base/sparse_pattern.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::app {

/// Reads the index for documents of these lengths; `attention` determines which of them are dense.
/// @throws Error(data) with the dataset, what was found and what is valid; Error(usage) if
/// attention is not sparse
SparseIndex read_index(const std::string& path, std::span<const std::int64_t> lengths, int heads,
                       const config::Attention& attention);

/// @param patterns  [documents, heads], with length 0 for dense documents
void write_index(storage::File& file, std::span<const std::int64_t> lengths, const SparseRule& rule,
                 std::span<const SparsePattern> patterns);

}  // namespace cadenza::app
