// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <random>
#include <set>

#include "support.hpp"

namespace cadenza::data::test_tokens {
namespace {

using Values = std::vector<std::int64_t>;

constexpr std::int64_t kVocabulary = 100;
constexpr std::int64_t kEnd = 9;

config::Data tokens(std::vector<std::string> paths,
                    config::TokenType dtype = config::TokenType::uint16) {
  config::Data data;
  data.source = config::Source::tokens;
  data.path = std::move(paths);
  data.dtype = dtype;
  data.document_end = kEnd;
  return data;
}

std::vector<std::vector<Token>> read(const config::Data& data) {
  return documents(*open_corpus(data, kVocabulary, 1));
}

// The format of NumPy's documentation, written out by hand.
std::string npy(int major, const std::string& dictionary, const std::string& data) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  const std::string length = as_bytes<std::uint32_t>({std::ssize(dictionary)});
  bytes += length.substr(0, major == 1 ? 2 : 4);
  return bytes + dictionary + data;
}

std::string dictionary(const std::string& descr, std::size_t count) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + std::to_string(count) +
         ",), }      \n";
}

std::string shard(std::int64_t magic, std::int64_t version, std::int64_t count,
                  const std::string& data) {
  Values header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return as_bytes<std::int32_t>(header) + data;
}

Values random_tokens(std::mt19937& random, std::size_t count) {
  Values values(count);
  for (auto& value : values) value = random() % kVocabulary;
  return values;
}

// Oracle: documents of one file, token by token.
std::vector<std::vector<Token>> split(const Values& values) {
  std::vector<std::vector<Token>> all;
  bool open = false;
  for (const std::int64_t value : values) {
    if (!open) all.emplace_back();
    all.back().push_back(static_cast<Token>(value));
    open = value != kEnd;
  }
  return all;
}

TEST(Tokens, FlatFiles) {
  TemporaryFolder folder;
  const Values values{1, 2, kEnd, kEnd, 70, 0, kEnd, 5};
  const std::vector<std::vector<Token>> expected{{1, 2, 9}, {9}, {70, 0, 9}, {5}};
  const auto narrow = folder.write("narrow.bin", as_bytes<std::uint16_t>(values));
  const auto wide = folder.write("wide.bin", as_bytes<std::uint32_t>(values));
  EXPECT_EQ(read(tokens({narrow})), expected);
  EXPECT_EQ(read(tokens({wide}, config::TokenType::uint32)), expected);
}

TEST(Tokens, DocumentsDoNotCrossFiles) {
  TemporaryFolder folder;
  folder.write("1.bin", as_bytes<std::uint16_t>({1, 2}));
  folder.write("2.bin", as_bytes<std::uint16_t>({3, kEnd}));
  folder.write("3.npy", npy(1, dictionary("<i8", 2), as_bytes<std::int64_t>({4, 5})));
  const std::vector<std::vector<Token>> expected{{1, 2}, {3, 9}, {4, 5}};
  EXPECT_EQ(read(tokens({folder / "1.bin", folder / "2.bin", folder / "3.npy"})), expected);
  EXPECT_EQ(read(tokens({folder / "*.bin", folder / "3.npy"})), expected);
}

TEST(Tokens, EveryFormatOfRandomDocuments) {
  TemporaryFolder folder;
  std::mt19937 random(3);
  for (const std::size_t count : {1, 2, 511, 512, 513, 5000}) {
    const Values values = random_tokens(random, count);
    const auto expected = split(values);
    const auto narrow = as_bytes<std::uint16_t>(values);
    const auto wide = as_bytes<std::uint32_t>(values);
    const auto n = static_cast<std::int64_t>(count);
    EXPECT_EQ(read(tokens({folder.write("a.bin", narrow)})), expected);
    EXPECT_EQ(read(tokens({folder.write("b.bin", wide)}, config::TokenType::uint32)), expected);
    EXPECT_EQ(read(tokens({folder.write("c.bin", shard(20240520, 1, n, narrow))})), expected);
    EXPECT_EQ(read(tokens({folder.write("d.bin", shard(20240801, 7, n, wide))})), expected);
    for (const int major : {1, 2, 3}) {
      const auto check = [&](const std::string& descr, const std::string& data) {
        const auto path = folder.write("e.npy", npy(major, dictionary(descr, count), data));
        EXPECT_EQ(read(tokens({path})), expected) << major << descr;
      };
      check("<u2", narrow);
      check("<u4", wide);
      check("<i4", wide);
      check("<i8", as_bytes<std::int64_t>(values));
    }
  }
}

TEST(Tokens, NpyHeadersOfOtherWriters) {
  TemporaryFolder folder;
  const auto data = as_bytes<std::uint16_t>({7, 8});
  for (const std::string header :
       {"{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<u2\"}",
        "{'shape' : ( 2 , ), 'descr' : '<u2', 'fortran_order' : False}  \n"}) {
    const auto path = folder.write("odd.npy", npy(1, header, data));
    EXPECT_EQ(read(tokens({path})), (std::vector<std::vector<Token>>{{7, 8}})) << header;
  }
  // Known by its first bytes too.
  const auto path = folder.write("renamed.bin", npy(1, dictionary("<u2", 2), data));
  EXPECT_EQ(read(tokens({path})), (std::vector<std::vector<Token>>{{7, 8}}));
}

TEST(Tokens, RangesAndCuts) {
  TemporaryFolder folder;
  std::mt19937 random(4);
  config::Data data =
      tokens({folder.write("a.bin", as_bytes<std::uint16_t>(random_tokens(random, 3000))),
              folder.write("b.bin", as_bytes<std::uint16_t>(random_tokens(random, 50)))});
  const auto whole = read(data);
  data.max_document = 37;
  const auto corpus = open_corpus(data, kVocabulary, 1);
  std::vector<Token> joined;
  for (const auto& part : documents(*corpus)) joined.insert(joined.end(), part.begin(), part.end());
  std::vector<Token> expected;
  for (const auto& part : whole) expected.insert(expected.end(), part.begin(), part.end());
  EXPECT_EQ(joined, expected);
  EXPECT_LE(std::ranges::max(corpus->lengths()), 37);
  for (std::int64_t i = 0; i < std::ssize(corpus->lengths()); ++i) {
    const auto all = document(*corpus, i);
    const auto begin = static_cast<std::int64_t>(random() % all.size());
    std::vector<Token> tail(all.size() - static_cast<std::size_t>(begin));
    corpus->read(i, {begin, std::ssize(all)}, tail);
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), all.begin() + begin));
  }
}

class TokenErrors : public ::testing::Test {
 protected:
  void expect(const std::vector<std::string>& parts, const std::string& name,
              const std::string& bytes, config::TokenType dtype = config::TokenType::uint16) const {
    const std::string path = folder_.write(name, bytes);
    std::vector<std::string> all = parts;
    all.push_back(path);
    expect_error(ExitCode::data, all, [&] { read(tokens({path}, dtype)); });
  }
  TemporaryFolder folder_;
};

TEST_F(TokenErrors, MissingEmptyAndOdd) {
  expect_error(ExitCode::data, {"gone.bin", "No such file"},
               [&] { read(tokens({folder_ / "gone.bin"})); });
  expect_error(ExitCode::data, {"data.path", "empty"}, [&] { read(tokens({})); });
  expect({"empty"}, "a.bin", "");
  expect({"empty"}, "a.npy", "");
  expect({"5 bytes", "multiple of 2", "uint16", "remainder 1"}, "a.bin", "12345");
  expect({"7 bytes", "multiple of 4", "uint32", "remainder 3"}, "a.bin", "1234567",
         config::TokenType::uint32);
}

TEST_F(TokenErrors, TextInsteadOfTokens) {
  const std::string yaml = "name: small\ndata: {source: tokens, path: \u00fc.bin}\n";
  expect({"text file", "data.source: text", "cadenza-prepare FILE"}, "x.yaml", yaml);
  expect({"text file"}, "x.bin", yaml, config::TokenType::uint32);
  const std::string cut(4095,
                        'a');  // a character of two bytes lies across the end of what is looked at
  expect({"text file"}, "long.bin", cut + "\u00fc and more");
  expect({"outside the vocabulary"}, "short.bin", as_bytes<std::uint16_t>(Values(7, 0x2020)));
}

/// A file of each foreign format, as short as it may be, padded with zeros behind its first bytes.
std::vector<std::pair<std::string, std::string>> foreign_files() {
  using namespace std::string_literals;
  const std::string zeros(40, '\0');
  const std::string json = "{\"a\":{\"dtype\":\"U16\"}}";
  const std::string record = as_bytes<std::uint64_t>({3}) + "crc1\x0a"s + "xycrc2";
  return {
      {"index of Megatron-LM", "MMIDIDX\0\0"s + as_bytes<std::uint64_t>({1}) + zeros},
      {"old Megatron-LM", "TNTIDX\0\0"s + zeros},
      {"Parquet", "PAR1" + zeros + "PAR1"},
      {"Arrow file", "ARROW1\0\0"s + zeros},
      {"Arrow stream", as_bytes<std::uint32_t>({0xffffffff, 20, 16}) + zeros},
      {"Feather", "FEA1" + zeros},
      {"Avro", "Obj\x01" + zeros},
      {"ORC", "ORC" + zeros + "ORC\x10"},
      {"TFRecord", record},
      {"TFRecord", record + record + "not looked at"},
      {"MosaicML", as_bytes<std::uint32_t>({2, 20, 24, 30, 0, 0, 0}) + "12"},
      {"HDF5", "\x89HDF\r\n\x1a\n" + zeros},
      {"SQLite", "SQLite format 3\0"s + zeros},
      {"tar", std::string(257, '\0') + "ustar" + zeros},
      {"zip", "PK\x03\x04" + zeros},
      {"gzip", "\x1f\x8b\x08" + zeros},
      {"Zstandard", "\x28\xb5\x2f\xfd" + zeros},
      {"xz",
       "\xfd"
       "7zXZ\0"s +
           zeros},
      {"bzip2", "BZh91AY&SY" + zeros},
      {"LZ4", "\x04\x22\x4d\x18" + zeros},
      {"7z", "7z\xbc\xaf\x27\x1c" + zeros},
      {"safetensors", as_bytes<std::uint64_t>({std::ssize(json)}) + json + zeros},
      {"pickle", "\x80\x04\x95"s + as_bytes<std::uint64_t>({5}) +
                     "]K\x01"
                     "a."},
      {"pickle",
       "\x80\x02]q\0K\x01"
       "a."s},
      {"GGUF", "GGUF\x03\0\0\0"s + zeros},
      {"PDF", "%PDF-1.7\n" + zeros},
      {"ELF",
       "\x7f"
       "ELF" +
           zeros},
      {"PNG", "\x89PNG\r\n\x1a\n" + zeros},
      {"JPEG", "\xff\xd8\xff\xe0" + zeros},
      {"JSON Lines", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"},
      {"JSON Lines", "{ \"text\": \"" + std::string(9000, 'x') + "\"}\r\n{\"text\": \"\"}"},
  };
}

TEST_F(TokenErrors, ForeignFiles) {
  for (const auto& [what, bytes] : foreign_files()) {
    SCOPED_TRACE(what);
    expect({what, "valid: "}, "a.bin", bytes);
    config::Data text;
    text.source = config::Source::text;
    text.path = {folder_.write("a.txt", bytes)};
    expect_error(ExitCode::data, {what, "a.txt"}, [&] { open_corpus(text, 300, 1); });
  }
}

TEST_F(TokenErrors, TheCommandThatConverts) {
  const std::set<std::string> converted{"Parquet", "gzip", "Zstandard", "JSON Lines"};
  std::size_t found = 0;
  for (const auto& [what, bytes] : foreign_files()) {
    if (!converted.contains(what)) continue;
    ++found;
    expect({what, "cadenza-prepare FILE --tokenizer FOLDER --output FOLDER"}, "a.bin", bytes);
  }
  EXPECT_EQ(found, 5U) << "JSON Lines twice";
}

TEST_F(TokenErrors, TokensWhereTextIsDue) {
  config::Data text;
  text.source = config::Source::text;
  const auto data = as_bytes<std::uint16_t>({1, 2});
  for (const std::string& bytes : {npy(1, dictionary("<u2", 2), data), shard(20240520, 1, 2, data),
                                   shard(20240801, 7, 1, data)}) {
    text.path = {folder_.write("a", bytes)};
    expect_error(ExitCode::data, {"valid: data.source: tokens"},
                 [&] { open_corpus(text, 300, 1); });
  }
}

/// What begins as foreign files do and is none.
TEST(Tokens, OfAnyFirstValue) {
  TemporaryFolder folder;
  std::mt19937 random(5);
  config::Data data = tokens({folder / "a.bin"}, config::TokenType::uint16);
  const auto is_taken = [&](const std::string& bytes) {
    folder.write("a.bin", bytes);
    EXPECT_NO_THROW(open_corpus(data, 1 << 16, 1)) << ::testing::PrintToString(bytes.substr(0, 16));
  };
  for (const auto& [what, bytes] : foreign_files()) {
    std::string tokens = bytes.substr(0, what == "tar" ? 100 : 2);  // its first token, then others
    while (tokens.size() < 64) tokens += static_cast<char>(random() | 0x81);
    is_taken(tokens);
  }
  config::Data text;
  text.source = config::Source::text;
  text.path = {folder / "a.bin"};
  for (const char* words :
       {"{\n  \"a\": 1\n}\n", "{\"a\": 1}\n", "{\"a\": 1}\n\n[2]\n", "ORC and PAR1\n",
        "PAR1 is a format", "{\"a\":\n{\"b\": 1}}", "GGUF is one, too", "BZh"}) {
    folder.write("a.bin", words);
    EXPECT_NO_THROW(open_corpus(text, 300, 1)) << words;
  }
}

TEST_F(TokenErrors, TokensOfAnotherWidth) {
  Values values(40);
  std::iota(values.begin(), values.end(), 1);
  const auto narrow = as_bytes<std::uint16_t>(values);
  const auto wide = as_bytes<std::int32_t>(values);
  const auto uint32 = config::TokenType::uint32;
  expect({"every second uint16 in it is 0", "int32", "valid: data.dtype: uint32"}, "a.bin", wide);
  expect({"every second uint32 in it is 0", "int64", ".npy"}, "a.bin",
         as_bytes<std::int64_t>(values), uint32);
  EXPECT_NO_THROW(read(tokens({folder_.write("a.bin", wide)}, uint32)));
  EXPECT_NO_THROW(read(tokens({folder_.write("a.bin", wide.substr(0, 28))}))) << "too few to tell";
  EXPECT_NO_THROW(read(tokens({folder_.write("a.bin", std::string(80, '\0'))}))) << "all of them 0";
}

TEST(Tokens, TheVocabularyFitsTheType) {
  TemporaryFolder folder;
  config::Data data = tokens({folder.write("a.bin", as_bytes<std::uint16_t>({1, 2, kEnd}))});
  EXPECT_NO_THROW(open_corpus(data, 65536, 1));
  expect_error(ExitCode::usage, {"data.dtype: found uint16", "a.bin", "65537", "valid: uint32"},
               [&] { open_corpus(data, 65537, 1); });
  data.document_end = 70000;  // a file that names its type needs no data.dtype
  data.path = {
      folder.write("a.npy", npy(1, dictionary("<i4", 2), as_bytes<std::int32_t>({1, 70000})))};
  EXPECT_EQ(documents(*open_corpus(data, 100000, 1)).size(), 1U);
}

TEST_F(TokenErrors, TokenOutsideTheVocabulary) {
  Values values(2000, 1);
  values[1700] = kVocabulary;
  values[1900] = kVocabulary + 5;
  const std::vector<std::string> parts{"token 100 ", "position 1700", "vocab: 100", "0 to 99"};
  expect(parts, "a.bin", as_bytes<std::uint16_t>(values));
  expect(parts, "a.bin", as_bytes<std::uint32_t>(values), config::TokenType::uint32);
  expect(parts, "a.npy", npy(1, dictionary("<i8", 2000), as_bytes<std::int64_t>(values)));
  expect(parts, "s.bin", shard(20240520, 1, 2000, as_bytes<std::uint16_t>(values)));
  values[3] = -1;
  expect({"token -1 ", "position 3"}, "a.npy",
         npy(1, dictionary("<i4", 2000), as_bytes<std::int32_t>(values)));
  expect({"token 4294967295 ", "position 3"}, "a.npy",
         npy(1, dictionary("<u4", 2000), as_bytes<std::uint32_t>(values)));
  values[3] = std::int64_t{1} << 40;
  expect({"token 1099511627776 ", "position 3"}, "a.npy",
         npy(1, dictionary("<i8", 2000), as_bytes<std::int64_t>(values)));
}

TEST_F(TokenErrors, Npy) {
  const std::string good = npy(1, dictionary("<u2", 2), as_bytes<std::uint16_t>({1, 2}));
  expect({"does not begin with"}, "a.npy", "hello, world");
  for (const std::size_t size : {6, 7, 9, 10, 40}) {
    expect({"ends inside its header"}, "a.npy", good.substr(0, size));
  }
  expect({"version 4.0"}, "a.npy", npy(4, dictionary("<u2", 1), "ab"));
  expect({".npy header says 2 tokens of 2 bytes", "3 bytes"}, "a.npy",
         good.substr(0, good.size() - 1));
  expect({"says 2 tokens", "6 bytes"}, "a.npy", good + "xx");
  expect({"empty"}, "a.npy", npy(1, dictionary("<u2", 0), ""));
  for (const char* descr : {">u2", "|u1", "<f4", "<u8"}) {
    expect({descr, "'<u2'"}, "a.npy", npy(1, dictionary(descr, 0), ""));
  }
  const auto header = [](const std::string& descr, const std::string& order,
                         const std::string& shape) {
    return npy(1,
               "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + "}",
               "1234");
  };
  expect({"(2, 1)", "one-dimensional"}, "a.npy", header("'<u2'", "False", "(2, 1)"));
  expect({"shape ()"}, "a.npy", header("'<u2'", "False", "()"));
  expect({"Fortran"}, "a.npy", header("'<u2'", "True", "(2,)"));
  expect({"[('a', '<u2')]"}, "a.npy", header("[('a', '<u2')]", "False", "(2,)"));
  expect({"fortran_order"}, "a.npy", header("'<u2'", "Perhaps", "(2,)"));
  expect({"'shape'", "no tuple"}, "a.npy", header("'<u2'", "False", "2"));
  expect({"no 'descr'"}, "a.npy", npy(1, "{'shape': (2,)}", "1234"));
  expect({"says 9223372036854775807 tokens"}, "a.npy",
         header("'<u2'", "False", "(9223372036854775807,)"));
}

TEST_F(TokenErrors, Shards) {
  const std::string data = as_bytes<std::uint16_t>({1, 2, 3});
  expect({"llm.c header says 4 tokens of 2 bytes", "6 bytes"}, "a.bin",
         shard(20240520, 1, 4, data));
  expect({"llm.c header says -1 tokens"}, "a.bin", shard(20240520, 1, -1, data));
  expect({"llm.c header says 1 tokens of 4 bytes", "6 bytes"}, "a.bin",
         shard(20240801, 7, 1, data));
  expect({"20240520", "version 2", "version 1 is known"}, "a.bin", shard(20240520, 2, 3, data));
  expect({"empty"}, "a.bin", shard(20240520, 1, 0, ""));
}

TEST_F(TokenErrors, FileThatShrinks) {
  const auto path = folder_.write("a.bin", as_bytes<std::uint16_t>(Values(8192, 1)));
  const auto corpus = open_corpus(tokens({path}), kVocabulary, 1);
  std::filesystem::resize_file(path, 10);
  expect_error(ExitCode::data, {"a.bin", "changed", "16384 bytes", "10 now"},
               [&] { document(*corpus, 0); });
}

}  // namespace
}  // namespace cadenza::data::test_tokens
