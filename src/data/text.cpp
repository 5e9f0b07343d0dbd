// SPDX-License-Identifier: Apache-2.0
#include "data/text.hpp"

#include <algorithm>
#include <array>

#include "cadenza/base/error.hpp"
#include "data/foreign.hpp"
#include "data/paths.hpp"

namespace cadenza::data {
namespace {

constexpr std::int64_t kSpecials = 2;  // begin and end

}  // namespace

TextCorpus::TextCorpus(const std::vector<std::string>& paths) {
  for (std::string& path : find_files(paths)) {
    const std::int64_t size = file_size(path);
    if (size == 0) continue;
    refuse_foreign(path, config::Source::text);  // now rather than hours into the run
    lengths_.push_back(size + kSpecials);
    files_.push_back(std::move(path));
  }
  if (paths.empty()) fail(ExitCode::data, "data.path: the corpus is empty: no file is named");
  if (files_.empty()) {
    fail(ExitCode::data, "data.path: the corpus is empty: every file of {} has 0 bytes",
         quoted(paths));
  }
}

void TextCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const std::int64_t end = lengths_[static_cast<std::size_t>(document)];
  const Range bytes = intersect(tokens, {1, end - 1});
  if (!bytes.empty()) {
    read_bytes(document, bytes.begin - 1,
               out.subspan(static_cast<std::size_t>(bytes.begin - tokens.begin),
                           static_cast<std::size_t>(bytes.size())));
  }
  if (!tokens.empty() && tokens.begin == 0) out.front() = kBeginToken;
  if (!tokens.empty() && tokens.end == end) out.back() = kEndToken;
}

void TextCorpus::read_bytes(std::int64_t document, std::int64_t offset,
                            std::span<Token> out) const {
  const auto index = static_cast<std::size_t>(document);
  const std::lock_guard lock(mutex_);
  check_size(files_[index], lengths_[index] - kSpecials);
  if (open_document_ != document) {
    open_ = File(files_[index]);
    open_document_ = document;
  }
  std::array<unsigned char, 16384> buffer;
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), buffer.size());
    open_.read(offset, {buffer.data(), count});
    std::copy_n(buffer.begin(), count, out.begin());
    offset += static_cast<std::int64_t>(count);
    out = out.subspan(count);
  }
}

}  // namespace cadenza::data
