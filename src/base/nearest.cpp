// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/nearest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace cadenza {
namespace {

struct Synonym {
  std::string_view word;
  std::string_view meant;  ///< empty: nothing that we have, whatever it resembles
};

/// Other programs' words that have few letters in common with ours, or too many.
constexpr Synonym kSynonyms[] = {{"bf16", "bfloat16"},
                                 {"fp32", "float32"},
                                 {"fp64", "float64"},
                                 {"fp16", ""},
                                 {"float16", ""},
                                 {"dp", "parallel.data"},
                                 {"pp", "parallel.pipeline"},
                                 {"tp", "parallel.tensor"},
                                 {"cp", "parallel.context"},
                                 {"max_doc", "data.max_document"}};

std::string lower(std::string_view word) {
  std::string letters(word);
  for (char& letter : letters) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return letters;
}

/// Levenshtein, one row at a time: row[j] = distance of the first letters of word to other[:j].
std::size_t distance(std::string_view word, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < word.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (word[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view given, const std::vector<std::string>& candidates) {
  // Longer than every candidate: what follows changes nothing.
  const std::string word = lower(given.substr(0, 64));
  const auto synonym = std::ranges::find(kSynonyms, word, &Synonym::word);
  if (synonym != std::end(kSynonyms)) {
    const auto meant = std::ranges::find(candidates, synonym->meant);
    return meant == candidates.end() ? "" : *meant;
  }
  std::string best;
  std::size_t least = (word.size() + 1) / 2;  // of all letters: too many
  for (const std::string& candidate : candidates) {
    const std::size_t changes = distance(word, lower(candidate));
    if (changes >= least) continue;
    least = changes;
    best = candidate;
  }
  return best;
}

std::string nearest_hint(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : fmt::format(", nearest is '{}'", best);
}

}  // namespace cadenza
