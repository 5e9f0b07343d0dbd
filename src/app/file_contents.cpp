// SPDX-License-Identifier: Apache-2.0
#include "app/file_contents.hpp"

#include <fmt/format.h>

#include <bit>
#include <numeric>

#include "cadenza/base/hash.hpp"

namespace cadenza::app {
namespace {

/// The key that names the files of the corpus; null: it comes from no file.
const char* corpus_key(const config::Data& data) {
  if (data.source == config::Source::text || data.source == config::Source::tokens) {
    return "data.path";
  }
  return data.lengths.path.empty() ? nullptr : "data.lengths.path";
}

std::uint64_t hash_of(const config::SparseAttention& sparse) {
  Hasher hash;
  for (const auto& layer : sparse.heads) {
    hash.add(static_cast<std::uint64_t>(layer.size()));
    for (const config::HeadBudget& head : layer) {
      hash.add(static_cast<std::uint64_t>(head.columns))
          .add(static_cast<std::uint64_t>(head.slashes))
          .add(std::bit_cast<std::uint64_t>(head.top_p));
    }
  }
  return hash.value();
}

}  // namespace

config::FileContents file_contents(const config::Experiment& experiment,
                                   const data::Corpus& corpus) {
  config::FileContents contents;
  if (const char* key = corpus_key(experiment.data)) {
    const std::span<const std::int64_t> lengths = corpus.lengths();
    Hasher hash;
    for (const std::int64_t length : lengths) hash.add(static_cast<std::uint64_t>(length));
    contents[key] = fmt::format("{} documents of {} tokens, lengths {:016x}", lengths.size(),
                                std::reduce(lengths.begin(), lengths.end()), hash.value());
  }
  const config::SparseAttention& sparse = experiment.attention.sparse;
  if (!sparse.budgets.empty()) {
    contents["attention.sparse.budgets"] = fmt::format("budgets {:016x}", hash_of(sparse));
  }
  return contents;
}

}  // namespace cadenza::app
