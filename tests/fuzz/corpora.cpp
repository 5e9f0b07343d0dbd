// SPDX-License-Identifier: Apache-2.0
// Files of tokens (flat, llm.c shards, .npy, Megatron-LM's with an index), headers of .npy files,
// files of document lengths and the patterns that name files.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "cadenza/base/error.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/data/corpus.hpp"
#include "data/file.hpp"
#include "data/lengths.hpp"
#include "data/token_file.hpp"
#include "readers.hpp"

namespace cadenza::fuzz {
namespace {

constexpr std::int64_t kMaxDocument = 64;

/// Reads documents: their lengths and tokens are what Corpus promises.
void read_corpus(const config::Data& data, std::int64_t vocab) {
  constexpr std::size_t kRead = 1000;  // more take too long
  const auto corpus = data::open_corpus(data, vocab, 1);
  const auto lengths = corpus->lengths();
  require(!lengths.empty(), "a corpus without documents");
  require(std::ranges::min(lengths) >= 1 && std::ranges::max(lengths) <= data.max_document,
          "documents of {} to {} tokens", std::ranges::min(lengths), std::ranges::max(lengths));
  std::vector<data::Token> tokens;
  for (std::size_t i = 0; i < std::min(lengths.size(), kRead); ++i) {
    tokens.assign(static_cast<std::size_t>(lengths[i]), -1);
    corpus->read(static_cast<std::int64_t>(i), {0, lengths[i]}, tokens);
    require(std::ranges::all_of(tokens, [&](auto t) { return t >= 0 && t < vocab; }),
            "document {} has tokens outside the vocabulary", i);
  }
}

config::Data tokens_in(const std::string& path, config::TokenType dtype) {
  config::Data data;
  data.source = config::Source::tokens;
  data.path = {path};
  data.dtype = dtype;
  data.document_end = 0;
  data.max_document = kMaxDocument;
  return data;
}

config::Data lengths_in(const std::string& path, config::Distribution distribution) {
  config::Data data;
  data.source = config::Source::synthetic;
  data.documents = 100;
  data.max_document = kMaxDocument;
  data.lengths.distribution = distribution;
  data.lengths.path = path;
  return data;
}

/// Documents of a corpus of lengths, once data.max_document has cut them.
double documents_of(config::Data data) {
  data.max_document = 0;  // does not cut
  double documents = 0;
  const auto corpus = data::open_corpus(data, 100, 1);
  for (const std::int64_t length : corpus->lengths()) {
    documents += std::ceil(static_cast<double>(length) / kMaxDocument);
  }
  return documents;
}

/// Corpora that no machine holds must be refused; between them and a second of work are sound ones
/// that take too long here.
void read_lengths_as(config::Distribution distribution, const std::string& path) {
  const config::Data data = lengths_in(path, distribution);
  const double documents = documents_of(data);
  if (documents < 1e6 || documents > static_cast<double>(config::kMostDocuments)) {
    read_corpus(data, 100);
  }
}

/// An experiment with `path` in it, in which YAML may write any character.
std::string with_path(const std::string& path) {
  std::string quoted;
  for (const char c : path) {
    const bool plain = c >= 0x20 && c != 0x7f && c != '"' && c != '\\';
    quoted += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return fmt::format(R"(
model: {{layers: 1, d_model: 4, heads: 1, ffn: 4, vocab: 300}}
batch: {{tokens: 4, microbatch: 4}}
data: {{source: text, path: "{}"}}
)",
                     quoted);
}

/// Nine folders in three levels with a file each, below `top`.
void make_tree(const std::filesystem::path& top) {
  for (const char* folder : {"a/a/a", "a/b/.c", "b/ab/[c]", "b/b/__pycache__"}) {
    std::filesystem::create_directories(top / folder);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(top)) {
    if (entry.is_directory()) std::ofstream(entry.path() / "x.bin") << "x";
  }
}

}  // namespace

void read_tokens(Bytes input) {
  if (input.empty()) return;
  const InputFile file(input.subspan(1), "tokens.bin");
  const auto dtype = input[0] & 1 ? config::TokenType::uint32 : config::TokenType::uint16;
  read_corpus(tokens_in(file.path(), dtype), input[0] & 2 ? 300 : 70'000);
}

void read_npy(Bytes input) {
  const std::vector<std::uint8_t> exact(input.begin(), input.end());  // nothing readable behind it
  const InputFile file(input, "tokens.npy");
  const data::NpyHeader header = data::parse_npy(file.path(), exact);
  require(header.data_offset >= 0 && header.data_offset <= std::ssize(input),
          "data begin at byte {} of {}", header.data_offset, input.size());
  read_corpus(tokens_in(file.path(), config::TokenType::uint16), 70'000);
}

void read_megatron(Bytes input) {
  constexpr std::size_t kMostTokens = 64;
  if (input.empty()) return;
  const std::size_t tokens = std::min(input.size() - 1, input[0] % kMostTokens);
  const InputFile bin(input.subspan(1, tokens), "tokens.bin");
  const InputFile index(input.subspan(1 + tokens), "tokens.idx");
  config::Data data = tokens_in(index.path(), config::TokenType::uint16);
  data.document_end = -1;
  read_corpus(data, 300);
}

void read_lengths(Bytes input) {
  const std::string text = text_of(input);
  const InputFile file({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                       "lengths.json");
  try {
    read_lengths_as(config::Distribution::file, file.path());
  } catch (const Error&) {
    read_lengths_as(config::Distribution::histogram, file.path());
  }
}

void read_paths(Bytes input) {
  static const std::filesystem::path top = scratch_folder() / "tree";
  static const bool made = (make_tree(top), true);
  static_cast<void>(made);
  const std::string pattern = text_of(input);
  if (pattern.find("..") != pattern.npos) return;  // stays in the tree
  const config::Experiment experiment =
      config::parse_experiment(with_path(top.string() + '/' + pattern), "experiment.yaml", {});
  for (const std::string& path : data::find_files(experiment.data.path)) {
    require(std::filesystem::is_regular_file(path), "found {}, which is no file", path);
  }
}

}  // namespace cadenza::fuzz
