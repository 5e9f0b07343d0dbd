// SPDX-License-Identifier: Apache-2.0
#include "data/tokens.hpp"

#include <algorithm>

#include "cadenza/base/error.hpp"
#include "data/paths.hpp"

namespace cadenza::data {

TokensCorpus::TokensCorpus(const config::Data& data, std::int64_t vocab) {
  for (const std::string& path : find_files(data.path)) {
    const TokenFile& file = files_.emplace_back(path, data.dtype, vocab);
    std::vector<std::int64_t> ends = file.find_ends(static_cast<Token>(data.document_end), vocab);
    if (ends.empty() || ends.back() != file.size()) ends.push_back(file.size());
    first_.push_back(static_cast<std::int64_t>(lengths_.size()));
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      begins_.push_back(begin);
      lengths_.push_back(end - begin);
      begin = end;
    }
  }
  if (files_.empty()) fail(ExitCode::data, "data.path: the corpus is empty: no file is named");
}

void TokensCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), document);
  const auto file = static_cast<std::size_t>(after - first_.begin() - 1);
  const std::int64_t begin = begins_[static_cast<std::size_t>(document)];
  files_[file].read({begin + tokens.begin, begin + tokens.end}, out);
}

}  // namespace cadenza::data
