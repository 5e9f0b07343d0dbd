// SPDX-License-Identifier: Apache-2.0
#include "data/corpora.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/data/corpus.hpp"
#include "data/blend.hpp"
#include "data/file.hpp"
#include "data/foreign.hpp"
#include "data/held_out.hpp"
#include "data/lengths.hpp"
#include "data/packing.hpp"

namespace cadenza::data {
namespace {

constexpr std::int64_t kSpecials = 2;  // begin and end tokens

}  // namespace

TextCorpus::TextCorpus(const std::vector<std::string>& paths) {
  for (std::string& path : find_files(paths)) {
    const std::int64_t size = file_size(path);
    if (size == 0) continue;
    refuse_foreign(path, config::Source::text);  // now, not hours into the run
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
  const std::int64_t end = lengths_[at(document)];
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

namespace {

/// The files of tokens that `entries` name, entry by entry: indexes of Megatron-LM in place of the
/// .bin files that they describe.
std::vector<std::string> find_token_files(const std::vector<std::string>& entries) {
  std::vector<std::string> files;
  for (const std::string& entry : entries) {
    std::set<std::string> seen;
    for (const std::string& path : find_files({entry})) {
      std::string preferred = prefer_index(path);
      if (seen.insert(preferred).second) files.push_back(std::move(preferred));
    }
  }
  return files;
}

}  // namespace

TokensCorpus::TokensCorpus(const config::Data& data, std::int64_t vocab,
                           const ScanProgress& progress) {
  for (const std::string& path : find_token_files(data.path)) open(path, data, vocab);
  if (files_.empty()) fail(ExitCode::data, "data.path: the corpus is empty: no file is named");
  find_ends(static_cast<Token>(data.document_end), progress);
  list_documents();
}

void TokensCorpus::open(const std::string& path, const config::Data& data, std::int64_t vocab) {
  if (is_megatron_index(path)) {
    MegatronIndex index(path);
    files_.push_back({TokenFile(index.bin(), index.storage(), vocab), {std::move(index)}});
    return;
  }
  files_.push_back({TokenFile(path, data.dtype, vocab)});
  if (data.document_end >= 0) return;
  fail(ExitCode::usage,
       "data.document_end: found nothing, but '{}' has no index of documents; valid: the token "
       "that ends a document, an integer in [0, model.vocab = {})",
       path, vocab);
}

/// Finds the documents of files without an index.
void TokensCorpus::find_ends(Token end, const ScanProgress& progress) {
  std::vector<const TokenFile*> plain;
  for (const File& file : files_) {
    if (!file.documents.index) plain.push_back(&file.tokens);
  }
  std::vector<FoundDocuments> found = find_documents(plain, end, progress);
  auto next = found.begin();
  for (File& file : files_) {
    if (!file.documents.index) file.documents = std::move(*next++);
  }
}

void TokensCorpus::list_documents() {
  std::size_t documents = 0;
  for (const auto& [tokens, found] : files_) {
    documents += found.index ? at(found.index->documents()) : found.ends.size();
  }
  begins_.reserve(documents);
  lengths_.reserve(documents);
  for (auto& [tokens, found] : files_) {
    first_.push_back(static_cast<std::int64_t>(lengths_.size()));
    if (found.index) found.index->add_documents(tokens.size(), begins_, lengths_);
    std::int64_t begin = 0;
    for (const std::int64_t end : std::exchange(found.ends, {})) {
      begins_.push_back(begin);
      lengths_.push_back(end - begin);
      begin = end;
    }
  }
}

void TokensCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), document);
  const auto& [file, found] = files_[at(after - first_.begin() - 1)];
  const std::int64_t begin = begins_[at(document)];
  if (!found.index) return file.read({begin + tokens.begin, begin + tokens.end}, out);
  for (const Range& place : found.index->places(begin, tokens)) {
    file.read(place, out.first(at(place.size())));
    out = out.subspan(at(place.size()));
  }
}

namespace {

constexpr std::uint64_t kMapStream = Hasher().add("synthetic.map").value();
constexpr std::uint64_t kTokenStream = Hasher().add("synthetic.token").value();
constexpr double kFollow = 0.7;

}  // namespace

SyntheticCorpus::SyntheticCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed)
    : vocab_(vocab), seed_(seed), lengths_(synthetic_lengths(data, seed)) {}

Token SyntheticCorpus::follow(Token previous) const {
  return static_cast<Token>(random_bits(seed_, kMapStream, static_cast<std::uint64_t>(previous)) %
                            static_cast<std::uint64_t>(vocab_));
}

void SyntheticCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const std::uint64_t stream = kTokenStream ^ mix64(static_cast<std::uint64_t>(document));
  Token token = 0;
  for (std::int64_t i = tokens.begin / kBlock * kBlock; i < tokens.end; ++i) {
    // Two draws per position: whether to follow the chain, and the token where it is not followed.
    const auto index = 2 * static_cast<std::uint64_t>(i);
    const bool follows = i % kBlock != 0 && random_uniform(seed_, stream, index) < kFollow;
    token = follows ? follow(token)
                    : static_cast<Token>(random_bits(seed_, stream, index + 1) %
                                         static_cast<std::uint64_t>(vocab_));
    if (i >= tokens.begin) out[at(i - tokens.begin)] = token;
  }
}

namespace {

std::unique_ptr<Corpus> open_source(const config::Data& data, std::int64_t vocab,
                                    std::uint64_t seed, const ScanProgress& progress) {
  switch (data.source) {
    case config::Source::text:
      if (vocab < kByteVocabulary) {
        fail(ExitCode::usage,
             "model.vocab: found {}; a text corpus needs at least {}: 256 bytes, 3 special tokens",
             vocab, kByteVocabulary);
      }
      return std::make_unique<TextCorpus>(data.path);
    case config::Source::tokens:
      return std::make_unique<TokensCorpus>(data, vocab, progress);
    case config::Source::synthetic:
      return std::make_unique<SyntheticCorpus>(data, vocab, seed);
    case config::Source::retrieval:
      return std::make_unique<RetrievalCorpus>(data, vocab, seed);
  }
  fail(ExitCode::usage, "data.source: not one of the known sources");
}

bool reads_files(const config::Data& data) {
  return data.source == config::Source::text || data.source == config::Source::tokens;
}

std::int64_t most_documents(const config::Data& data) {
  return reads_files(data) ? config::kMostFileDocuments : config::kMostDocuments;
}

/// Documents are held out whole, before they are cut.
std::unique_ptr<Corpus> open_cut(const config::Data& data, std::int64_t vocab, std::uint64_t seed,
                                 Part part, const ScanProgress& progress) {
  auto whole = open_source(data, vocab, seed, progress);
  const std::optional<double> share = config::held_out_share(data);
  if (share) whole = std::make_unique<PartCorpus>(std::move(whole), *share, part);
  return cut(std::move(whole), data.max_document, most_documents(data));
}

std::unique_ptr<Corpus> open_part(const config::Data& data, std::int64_t vocab, std::uint64_t seed,
                                  Part part, const ScanProgress& progress) {
  if (data.weights.empty() || !reads_files(data)) {
    return open_cut(data, vocab, seed, part, progress);
  }
  std::vector<std::unique_ptr<Corpus>> entries;
  for (const std::string& entry : data.path) {
    config::Data one = data;
    one.path = {entry};
    entries.push_back(open_cut(one, vocab, seed, part, progress));
  }
  if (part == Part::validation) return std::make_unique<JoinedCorpus>(std::move(entries));
  return std::make_unique<BlendCorpus>(std::move(entries), data.path, data.weights,
                                       most_documents(data));
}

std::vector<std::string> find_validation(const std::vector<std::string>& entries) {
  try {
    return find_files(entries);
  } catch (const Error& error) {
    std::string text = error.what();
    constexpr std::string_view kPath = "data.path";
    if (text.starts_with(kPath)) text.replace(0, kPath.size(), "data.validation");
    throw Error(error.code(), text);
  }
}

/// Files of validation are not those of training, nor missing.
void require_others(const config::Data& data) {
  std::set<std::string> trained;
  for (const std::string& path : find_files(data.path)) {
    trained.insert(std::filesystem::weakly_canonical(path).string());
  }
  for (const std::string& path : find_validation(data.validation)) {
    if (!trained.contains(std::filesystem::weakly_canonical(path).string())) continue;
    fail(ExitCode::usage,
         "data.validation: found '{}', which data.path has, too; valid: other files", path);
  }
}

}  // namespace

std::unique_ptr<Corpus> open_corpus(const config::Data& data, std::int64_t vocab,
                                    std::uint64_t seed, const ScanProgress& progress, Part part) {
  if (part == Part::training || config::held_out_share(data)) {
    return open_part(data, vocab, seed, part, progress);
  }
  require_others(data);
  config::Data files = data;
  files.path = std::exchange(files.validation, {});
  files.weights.clear();
  return open_part(files, vocab, seed, Part::training, progress);
}

}  // namespace cadenza::data
