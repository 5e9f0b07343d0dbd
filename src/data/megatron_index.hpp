// SPDX-License-Identifier: Apache-2.0
// Indexes of Megatron-LM: where the documents of a .bin file lie.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/range.hpp"
#include "data/file.hpp"
#include "data/token_file.hpp"

namespace cadenza::data {

/// Where `path` is PREFIX.bin with an index of Megatron-LM beside it, PREFIX.idx; else `path`.
std::string prefer_index(const std::string& path);

/// Whether the file is an index of Megatron-LM, by its name or its first bytes.
bool is_megatron_index(const std::string& path);

/// PREFIX.idx, mapped into memory (Megatron-LM's core/datasets/indexed_dataset.py): the type of
/// the tokens in PREFIX.bin, its sequences, and the sequences of every document. The tokens of a
/// document are those of its sequences, one after another; sequences may lie anywhere in the .bin.
class MegatronIndex {
 public:
  /// Reads the header and checks it against the file's size.
  /// @throws Error(data): no index of version 1, cut short or too long, of a type that is no
  ///         integer, of sequences with modes (multimodal), without a document
  explicit MegatronIndex(const std::string& path);

  std::string bin() const { return bin_; }  ///< path of the file of tokens
  TokenStorage storage() const { return storage_; }
  std::int64_t documents() const { return documents_; }
  /// Whether the sequences lie one after another and are `tokens` tokens in all.
  bool fills(std::int64_t tokens) const;

  /// Adds the first sequence and the length in tokens of each document that has tokens. Checks
  /// every number of the index against the .bin of `tokens` tokens; reads none of these.
  /// @throws Error(data): a document index that does not ascend from 0 to the number of sequences,
  ///         as where files were joined but their document indexes not merged; a sequence of
  ///         negative length or outside the .bin
  void add_documents(std::int64_t tokens, std::vector<std::int64_t>& first_sequences,
                     std::vector<std::int64_t>& lengths) const;

  /// The places in the .bin, in tokens, of `tokens` of the document that begins with
  /// `first_sequence`; sequences that adjoin there are one. @throws Error(data) when the index's
  /// size has changed.
  std::vector<Range> places(std::int64_t first_sequence, Range tokens) const;

 private:
  void read_header();
  void check_layout() const;
  std::int64_t length(std::int64_t sequence) const;
  std::int64_t pointer(std::int64_t sequence) const;
  std::int64_t document_index(std::int64_t document) const;
  void check_sequence(std::int64_t sequence, std::int64_t tokens) const;
  void check_ends() const;

  MappedFile file_;
  std::string bin_;
  TokenStorage storage_ = TokenStorage::uint16;
  std::int64_t sequences_ = 0;
  std::int64_t documents_ = 0;
};

/// Writes an index of documents that lie one after another.
/// @param ends  of the documents, in tokens, ascending
void write_megatron_index(std::ostream& out, std::span<const std::int64_t> ends,
                          TokenStorage storage);

}  // namespace cadenza::data
