// SPDX-License-Identifier: Apache-2.0
#include "data/foreign.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "data/file.hpp"

namespace cadenza::data {
namespace {

using namespace std::string_view_literals;
using config::Source;

/// A file of which formats read few bytes at several places.
class Bytes {
 public:
  explicit Bytes(const std::string& path) : file_(path), size_(file_.size()) {
    head_ = read(0, kHead);
  }
  std::int64_t size() const { return size_; }
  std::string_view head() const { return head_; }

  /// Up to `count` bytes from `offset` on, as many as the file has.
  std::string read(std::int64_t offset, std::int64_t count) const {
    if (offset < 0 || offset >= size_) return "";
    if (offset + count <= std::ssize(head_)) {
      return head_.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
    }
    std::string bytes(static_cast<std::size_t>(std::min(count, size_ - offset)), '\0');
    file_.read(offset, {reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()});
    return bytes;
  }
  bool has(std::int64_t offset, std::string_view bytes) const {
    return read(offset, std::ssize(bytes)) == bytes;
  }
  /// The little-endian number at `offset`; 0 beyond the end.
  template <typename T>
  T number(std::int64_t offset) const {
    T value = 0;
    const std::string bytes = read(offset, sizeof(T));
    if (bytes.size() == sizeof(T))
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&value));
    return value;
  }

 private:
  static constexpr std::int64_t kHead = 4096;
  File file_;
  std::int64_t size_;
  std::string head_;
};

/// Whether the file begins with a whole record, followed by another one or the end.
bool is_tfrecord(const Bytes& file) {
  constexpr std::uint64_t kFrame = 16;  // bytes of a record's length and two checksums
  constexpr std::string_view kExample = "\x0a"sv;
  const auto size = static_cast<std::uint64_t>(file.size());
  const auto is_record = [&](std::uint64_t begin) {
    const auto at = static_cast<std::int64_t>(begin);
    const auto length = file.number<std::uint64_t>(at);
    return length > 0 && size - begin > kFrame && length <= size - begin - kFrame &&
           file.has(at + 12, kExample);
  };
  if (!is_record(0)) return false;
  const std::uint64_t next = file.number<std::uint64_t>(0) + kFrame;
  return next == size || is_record(next);
}

/// Whether the file begins with the length of a JSON header and the header.
bool is_safetensors(const Bytes& file) {
  const auto length = file.number<std::uint64_t>(0);
  if (length < 2 || length > static_cast<std::uint64_t>(file.size()) - 8) return false;
  const std::string last = file.read(static_cast<std::int64_t>(length) + 7, 1);
  return file.has(8, "{\"") && (last == "}" || last == " ");
}

/// Whether the file has a version, a frame or an opcode that begins pickles, and a STOP at the end.
bool is_pickle(const Bytes& file) {
  const std::string head = file.read(0, 11);
  if (head.size() < 4 || head[0] != '\x80' || !file.has(file.size() - 1, ".")) return false;
  const bool framed =
      head[2] == '\x95' && file.number<std::uint64_t>(3) <= static_cast<std::uint64_t>(file.size());
  const bool plain = "]}(cX\x8a"sv.find(head[2]) != std::string_view::npos;
  return head[1] == '\x02' || head[1] == '\x03'
             ? plain
             : (head[1] == '\x04' || head[1] == '\x05') && framed;
}

/// Whether the file begins with a continuation mark, the length of a schema and the root of its
/// flatbuffer.
bool is_arrow_stream(const Bytes& file) {
  return file.has(0, "\xff\xff\xff\xff") && file.has(8, "\x10\0\0\0"sv) &&
         file.number<std::uint32_t>(4) < static_cast<std::uint64_t>(file.size());
}

/// Whether the file begins with the number of samples and the begin of each, and the last sample
/// ends with the file.
bool is_mosaic_shard(const Bytes& file) {
  const std::int64_t samples = file.number<std::uint32_t>(0);
  return samples > 0 && file.number<std::uint32_t>(4 + 4 * samples) == file.size() &&
         file.number<std::uint32_t>(4) > 4 + 4 * samples;
}

/// Whether the file has an object per line. The second line must begin one too, as a single object
/// may be a document of text.
bool is_json_lines(const Bytes& file) {
  constexpr std::int64_t kLongest = 1 << 20;
  const auto opens = [](std::string_view line) {
    return line.starts_with('{') && line.substr(1).find_first_not_of(' ') != line.npos &&
           line[line.find_first_not_of(' ', 1)] == '"';
  };
  if (!opens(file.head())) return false;
  const std::string text = file.read(0, kLongest);
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return false;
  std::string_view first = std::string_view(text).substr(0, end);
  if (first.ends_with('\r')) first.remove_suffix(1);
  return first.ends_with('}') && opens(std::string_view(text).substr(end + 1));
}

constexpr const char* kIds = "token ids in a flat file or .npy, or text files";
constexpr const char* kUnpacked = "the file unpacked";
constexpr const char* kPrepared =
    "what cadenza-prepare FILE --tokenizer FOLDER --output FOLDER makes of it";
constexpr const char* kUnpackedOrPrepared =
    "the file unpacked, or what cadenza-prepare FILE --tokenizer FOLDER --output FOLDER makes of "
    "it";
constexpr const char* kArray = "token ids, saved as .npy (numpy.save)";
constexpr const char* kTokens = "data.source: tokens";

struct Format {
  std::string_view bytes;  ///< bytes of the format
  std::int64_t at;         ///< their offset; below 0: from the end
  const char* what;
  const char* instead;
  bool (*also)(const Bytes&) = nullptr;  ///< further condition
};

constexpr std::array kFormats = {
    Format{"TNTIDX\0\0"sv, 0, "an index of fairseq or an old Megatron-LM",
           "the .bin file beside it, with data.dtype: uint32 where its tokens are int32"},
    Format{"PAR1", 0, "a Parquet file", kPrepared,
           [](const Bytes& file) { return file.has(file.size() - 4, "PAR1"); }},
    Format{"ARROW1\0\0"sv, 0, "an Arrow file", kIds},
    Format{"", 0, "an Arrow stream (a data set of Hugging Face)", kIds, is_arrow_stream},
    Format{"FEA1", 0, "a Feather file", kIds},
    Format{"Obj\x01", 0, "an Avro file", kIds},
    Format{"ORC", -4, "an ORC file", kIds, [](const Bytes& file) { return file.has(0, "ORC"); }},
    Format{"", 0, "a TFRecord file", kIds, is_tfrecord},
    Format{"", 0, "a shard of MosaicML (.mds)", kIds, is_mosaic_shard},
    Format{"\x89HDF\r\n\x1a\n", 0, "an HDF5 file", kIds},
    Format{"SQLite format 3\0"sv, 0, "an SQLite database", kIds},
    Format{"ustar", 257, "a tar archive", kUnpacked},
    Format{"PK\x03\x04", 0, "a zip archive (.npz, .pt, .zip)", kArray},
    Format{"\x1f\x8b\x08", 0, "compressed with gzip", kUnpackedOrPrepared},
    Format{"\x28\xb5\x2f\xfd", 0, "compressed with Zstandard", kUnpackedOrPrepared},
    Format{"\xfd"
           "7zXZ\0"sv,
           0, "compressed with xz", kUnpacked},
    Format{"1AY&SY", 4, "compressed with bzip2", kUnpacked,
           [](const Bytes& file) { return file.has(0, "BZh"); }},
    Format{"\x04\x22\x4d\x18", 0, "compressed with LZ4", kUnpacked},
    Format{"7z\xbc\xaf\x27\x1c", 0, "a 7z archive", kUnpacked},
    Format{"", 0, "a file of safetensors", kArray, is_safetensors},
    Format{"", 0, "a pickle of Python", kArray, is_pickle},
    Format{"GGUF", 0, "a model of llama.cpp (GGUF)", kIds,
           [](const Bytes& file) { return file.number<std::uint32_t>(4) < 100; }},
    Format{"%PDF-", 0, "a PDF document", kIds},
    Format{"\x7f"
           "ELF",
           0, "a program or library (ELF)", kIds},
    Format{"\x89PNG\r\n\x1a\n", 0, "a picture (PNG)", kIds},
    Format{"\xff\xd8\xff", 0, "a picture (JPEG)", kIds},
    Format{"", 0, "a file of JSON Lines", kPrepared, is_json_lines},
};

/// Formats of token ids, which are foreign where text is expected.
constexpr std::array kTokenFormats = {
    Format{"\x93NUMPY", 0, "an array of NumPy", kTokens},
    Format{"\x88\xd8\x34\x01", 0, "a shard of llm.c", kTokens},
    Format{"\xa1\xd9\x34\x01", 0, "a shard of llm.c", kTokens},
    Format{"MMIDIDX\0\0"sv, 0, "an index of Megatron-LM", kTokens},
};

bool is(const Bytes& file, const Format& format) {
  const std::int64_t at = format.at < 0 ? file.size() + format.at : format.at;
  return file.has(at, format.bytes) && (format.also == nullptr || format.also(file));
}

/// Whether the file begins with text, of at least 16 bytes, as fewer may be tokens by chance.
bool is_text(const Bytes& file) {
  constexpr std::size_t kLeast = 16;
  std::string head(file.head());
  while (!head.empty() && (head.back() & 0x80) != 0) head.pop_back();  // perhaps a cut character
  std::ranges::replace(head, '\r', '\n');
  return head.size() >= kLeast && is_plain(head);
}

/// Refuses files with an early zero byte: text has none, unlike audio, video, programs and office
/// documents.
void require_no_zeros(const std::string& path, const Bytes& file) {
  constexpr std::size_t kEarly = 1024;
  const std::size_t at = file.head().find('\0');
  if (at >= kEarly) return;  // npos too
  fail(ExitCode::data,
       "data.path: '{}' is not text: byte {} is zero; valid: text without zero bytes, such as "
       "UTF-8, or {} for a file of token ids",
       path, at, kTokens);
}

[[noreturn]] void refuse(const std::string& path, const Format& format) {
  fail(ExitCode::data, "data.path: '{}' is {}, which is not read; valid: {}", path, format.what,
       format.instead);
}

}  // namespace

void refuse_foreign(const std::string& path, Source source) {
  const Bytes file(path);
  for (const Format& format : kFormats) {
    if (is(file, format)) refuse(path, format);
  }
  if (source == Source::text) {
    for (const Format& format : kTokenFormats) {
      if (is(file, format)) refuse(path, format);
    }
    require_no_zeros(path, file);
  } else if (is_text(file)) {
    fail(ExitCode::data,
         "data.path: '{}' is a text file, without token ids; valid: data.source: text, or {}", path,
         kPrepared);
  }
}

}  // namespace cadenza::data
