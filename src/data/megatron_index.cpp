// SPDX-License-Identifier: Apache-2.0
#include "data/megatron_index.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::data {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kIndexMagic = "MMIDIDX\0\0"sv;
// The magic number, a version (uint64), a type (uint8), numbers of sequences and of ends of
// documents (uint64). Lengths (int32) and pointers (int64) of sequences and the ends (int64)
// follow.
constexpr std::int64_t kHeaderBytes = 34;
constexpr std::int64_t kLengthBytes = 4, kPointerBytes = 8, kEndBytes = 8;
// Each is looked at when the run begins.
constexpr std::int64_t kMostSequences = std::int64_t{1} << 32;

std::string without_extension(const std::string& path) {
  return path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

bool begins_with_magic(std::span<const unsigned char> bytes) {
  return bytes.size() >= kIndexMagic.size() &&
         std::memcmp(bytes.data(), kIndexMagic.data(), kIndexMagic.size()) == 0;
}

bool begins_with_magic(const std::string& path) {
  const File file(path);
  std::array<unsigned char, kIndexMagic.size()> head{};
  if (file.size() < std::ssize(head)) return false;
  file.read(0, head);
  return begins_with_magic(head);
}

// Numbers of the index may begin at any address.
template <typename T>
T load(std::span<const unsigned char> bytes, std::int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// The type that a code of the index stands for.
struct Type {
  const char* name;
  std::optional<TokenStorage> storage;  ///< none: no integers
};
constexpr std::array kTypes = {
    // by code, from 1 on
    Type{"uint8", TokenStorage::uint8}, Type{"int8", TokenStorage::int8},
    Type{"int16", TokenStorage::int16}, Type{"int32", TokenStorage::int32},
    Type{"int64", TokenStorage::int64}, Type{"float64", std::nullopt},
    Type{"float32", std::nullopt},      Type{"uint16", TokenStorage::uint16},
};

template <typename... Args>
[[noreturn]] void refuse_index(const std::string& path, fmt::format_string<Args...> found,
                               Args&&... args) {
  fail(ExitCode::data, "data.path: '{}' is an index of Megatron-LM that {}", path,
       fmt::format(found, std::forward<Args>(args)...));
}

}  // namespace

std::string prefer_index(const std::string& path) {
  if (!path.ends_with(".bin")) return path;
  const std::string index = path.substr(0, path.size() - 4) + ".idx";
  std::error_code error;
  if (!std::filesystem::is_regular_file(index, error) || !begins_with_magic(index)) return path;
  return index;
}

bool is_megatron_index(const std::string& path) {
  return path.ends_with(".idx") || begins_with_magic(path);
}

MegatronIndex::MegatronIndex(const std::string& path)
    : file_(path), bin_(without_extension(path) + ".bin") {
  if (!begins_with_magic(file_.bytes())) {
    fail(ExitCode::data,
         "data.path: '{}' is no index of Megatron-LM: it does not begin with MMIDIDX; valid: the "
         ".idx that its preprocess_data.py writes, or token ids in a flat .bin or .npy",
         path);
  }
  read_header();
  check_layout();
  check_ends();
}

void MegatronIndex::read_header() {
  const std::string& path = file_.path();
  const auto bytes = file_.bytes();
  if (std::ssize(bytes) < kHeaderBytes) {
    refuse_index(path, "ends inside its header, after {} of {} bytes; valid: the whole file",
                 bytes.size(), kHeaderBytes);
  }
  const auto version = load<std::uint64_t>(bytes, 9);
  if (version != 1) refuse_index(path, "has version {}; valid: 1", version);
  const auto code = load<std::uint8_t>(bytes, 17);
  if (code < 1 || code > kTypes.size()) {
    refuse_index(path, "has tokens of type {}; valid: 1 to 5 or 8, which are integers", code);
  }
  const Type& type = kTypes[code - 1U];
  if (!type.storage) {
    refuse_index(path, "has tokens of type {} ({}); valid: integers", code, type.name);
  }
  storage_ = *type.storage;
  const auto sequences = load<std::uint64_t>(bytes, 18);
  const auto ends = load<std::uint64_t>(bytes, 26);
  // Divide, do not multiply: a broken header may name any numbers.
  const std::uint64_t room = bytes.size() - kHeaderBytes;
  if (sequences > room / (kLengthBytes + kPointerBytes) ||
      ends > (room - sequences * (kLengthBytes + kPointerBytes)) / kEndBytes) {
    refuse_index(
        path,
        "is cut short: its header says {} sequences and {} ends of documents, of {} and {} "
        "bytes, but {} bytes follow it; valid: the whole file",
        sequences, ends, kLengthBytes + kPointerBytes, kEndBytes, room);
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(ends) - 1;  // the first end is 0
}

/// Checks what is behind the last array, and the number of documents.
void MegatronIndex::check_layout() const {
  const std::string& path = file_.path();
  const std::int64_t rest = std::ssize(file_.bytes()) - kHeaderBytes -
                            sequences_ * (kLengthBytes + kPointerBytes) -
                            (documents_ + 1) * kEndBytes;
  if (rest != 0 && rest == sequences_) {
    refuse_index(path,
                 "gives each of its {} sequences a mode (multimodal); valid: an index of text",
                 sequences_);
  }
  if (rest != 0) {
    refuse_index(
        path,
        "is {} bytes longer than its {} sequences and {} ends of documents; valid: the file "
        "as it was written",
        rest, sequences_, documents_ + 1);
  }
  if (sequences_ == 0 || documents_ < 0) {
    refuse_index(path, "is empty: it has {} sequences and {} ends of documents; valid: documents",
                 sequences_, documents_ + 1);
  }
  if (documents_ > config::kMostFileDocuments || sequences_ > kMostSequences) {
    refuse_index(path, "has {} documents of {} sequences; valid: at most {} and {}", documents_,
                 sequences_, config::kMostFileDocuments, kMostSequences);
  }
}

/// Checks that the ends of documents begin and end as those of whole or merged files do.
void MegatronIndex::check_ends() const {
  const std::int64_t first = document_index(0), last = document_index(documents_);
  if (first == 0 && last == sequences_) return;
  refuse_index(
      file_.path(),
      "has a document index from {} to {}, but {} sequences: files were joined and their "
      "document indexes not merged, or it is damaged; valid: an index from 0 to {}, as "
      "Megatron-LM's tools/merge_datasets.py makes it, or the .bin without an .idx beside it, "
      "with data.document_end",
      first, last, sequences_, sequences_);
}

std::int64_t MegatronIndex::length(std::int64_t sequence) const {
  return load<std::int32_t>(file_.bytes(), kHeaderBytes + sequence * kLengthBytes);
}

std::int64_t MegatronIndex::pointer(std::int64_t sequence) const {
  return load<std::int64_t>(file_.bytes(),
                            kHeaderBytes + sequences_ * kLengthBytes + sequence * kPointerBytes);
}

std::int64_t MegatronIndex::document_index(std::int64_t document) const {
  return load<std::int64_t>(
      file_.bytes(),
      kHeaderBytes + sequences_ * (kLengthBytes + kPointerBytes) + document * kEndBytes);
}

void MegatronIndex::check_sequence(std::int64_t sequence, std::int64_t tokens) const {
  const std::int64_t count = length(sequence), begin = pointer(sequence), size = width(storage_);
  if (count < 0) {
    refuse_index(file_.path(), "gives sequence {} {} tokens; valid: 0 or more", sequence, count);
  }
  if (begin >= 0 && begin % size == 0 && begin / size <= tokens && count <= tokens - begin / size) {
    return;
  }
  refuse_index(
      file_.path(),
      "has {} tokens of {} bytes at byte {} as sequence {}, but '{}' holds {} tokens; valid: "
      "the .bin that was written with it",
      count, size, begin, sequence, bin_, tokens);
}

void MegatronIndex::add_documents(std::int64_t tokens, std::vector<std::int64_t>& first_sequences,
                                  std::vector<std::int64_t>& lengths) const {
  const auto before = lengths.size();
  std::int64_t sequence = 0;
  for (std::int64_t document = 0; document < documents_; ++document) {
    const std::int64_t end = document_index(document + 1);
    if (end < sequence || end > sequences_) {
      refuse_index(
          file_.path(),
          "has a document index that does not ascend to its {} sequences: {} is followed by {} "
          "at place {}; valid: an index of whole or merged files",
          sequences_, sequence, end, document + 1);
    }
    const std::int64_t first = sequence;
    std::int64_t total = 0;
    for (; sequence < end; ++sequence) {
      check_sequence(sequence, tokens);
      total += length(sequence);
      if (total > config::kMostTokens) {
        refuse_index(file_.path(), "has more than {} tokens in document {}; valid: fewer",
                     config::kMostTokens, document);
      }
    }
    if (total == 0) continue;
    first_sequences.push_back(first);
    lengths.push_back(total);
  }
  if (lengths.size() == before) {
    refuse_index(file_.path(), "is empty: its {} documents have no tokens; valid: documents",
                 documents_);
  }
}

std::vector<Range> MegatronIndex::places(std::int64_t first_sequence, Range tokens) const {
  // Reading a mapping beyond the end of a file that shrank kills the process.
  check_size(file_.path(), std::ssize(file_.bytes()));
  std::vector<Range> places;
  std::int64_t before = 0;  // tokens of the document before the sequence
  for (std::int64_t sequence = first_sequence; before < tokens.end; ++sequence) {
    const std::int64_t count = length(sequence);
    const Range part = intersect({tokens.begin - before, tokens.end - before}, {0, count});
    before += count;
    if (part.empty()) continue;
    const std::int64_t begin = pointer(sequence) / width(storage_);
    if (!places.empty() && places.back().end == begin + part.begin) {
      places.back().end = begin + part.end;
    } else {
      places.push_back({begin + part.begin, begin + part.end});
    }
  }
  return places;
}

bool MegatronIndex::fills(std::int64_t tokens) const {
  std::int64_t before = 0;
  for (std::int64_t sequence = 0; sequence < sequences_; ++sequence) {
    const std::int64_t count = length(sequence);
    if (count < 1 || count > tokens - before) return false;
    if (pointer(sequence) != before * width(storage_)) return false;
    before += count;
  }
  return before == tokens;
}

void write_megatron_index(std::ostream& out, std::span<const std::int64_t> ends,
                          TokenStorage storage) {
  // The length of a sequence is an int32: longer documents have several.
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  const auto put = [&](const auto number) {
    out.write(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  const auto for_each_sequence = [&](auto visit) {
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      for (; begin < end; begin = std::min(end, begin + kLongest)) {
        visit(begin, std::min(end - begin, kLongest));
      }
    }
  };
  std::uint64_t sequences = 0;
  for_each_sequence([&](std::int64_t, std::int64_t) { ++sequences; });
  // There is no code of uint32; to the reader of an index the width alone matters.
  const auto is_type = [&](const Type& type) {
    return type.storage == (storage == TokenStorage::uint32 ? TokenStorage::int32 : storage);
  };
  const auto code = std::ranges::find_if(kTypes, is_type) - kTypes.begin() + 1;
  out << kIndexMagic;
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(code));
  put(sequences);
  put(static_cast<std::uint64_t>(ends.size()) + 1);
  for_each_sequence(
      [&](std::int64_t, std::int64_t length) { put(static_cast<std::int32_t>(length)); });
  for_each_sequence([&](std::int64_t begin, std::int64_t) { put(begin * width(storage)); });
  std::int64_t begin = 0, sequence = 0;
  put(sequence);
  for (const std::int64_t end : ends) {
    sequence += (end - begin + kLongest - 1) / kLongest;
    put(sequence);
    begin = end;
  }
}

}  // namespace cadenza::data
