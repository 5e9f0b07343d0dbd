// SPDX-License-Identifier: Apache-2.0
// Datasets of Megatron-LM, written here from the description of their format.
#include <random>

#include "cadenza/config/limits.hpp"
#include "support.hpp"

namespace cadenza::data::test_megatron {
namespace {

using Values = std::vector<std::int64_t>;
using Documents = std::vector<std::vector<Token>>;

constexpr std::int64_t kVocabulary = 100;

/// The parts of an index; pointers follow from lengths unless they are given.
struct Index {
  Values lengths;
  Values ends;
  int code = 8;
  std::int64_t width = 2;
  Values pointers = {};
  std::int64_t version = 1;

  std::string header(std::int64_t sequences, std::int64_t count) const {
    return std::string("MMIDIDX\0\0", 9) + as_bytes<std::int64_t>({version}) +
           static_cast<char>(code) + as_bytes<std::int64_t>({sequences, count});
  }
  std::string bytes() const {
    Values places = pointers;
    std::int64_t place = 0;
    for (const std::int64_t length : lengths) {
      if (pointers.empty()) places.push_back(place);
      place += length * width;
    }
    return header(std::ssize(lengths), std::ssize(ends)) + as_bytes<std::int32_t>(lengths) +
           as_bytes<std::int64_t>(places) + as_bytes<std::int64_t>(ends);
  }
};

config::Data tokens(std::vector<std::string> paths) {
  config::Data data;
  data.source = config::Source::tokens;
  data.path = std::move(paths);
  return data;
}

Documents read(const std::vector<std::string>& paths, std::int64_t vocab = kVocabulary) {
  return documents(*open_corpus(tokens(paths), vocab, 1));
}

class Megatron : public ::testing::Test {
 protected:
  /// Writes NAME.idx and, as uint16, NAME.bin. @return the path of the index
  std::string write(const std::string& name, const Index& index, const Values& values) const {
    folder_.write(name + ".bin", as_bytes<std::uint16_t>(values));
    return folder_.write(name + ".idx", index.bytes());
  }
  void expect(const std::vector<std::string>& parts, const std::string& index,
              const Values& values = {1, 2, 3, 4, 5, 6}) const {
    folder_.write("a.bin", as_bytes<std::uint16_t>(values));
    const std::string path = folder_.write("a.idx", index);
    std::vector<std::string> all = parts;
    all.insert(all.end(), {"data.path: '" + path + "' is ", "ndex of Megatron-LM", "; valid: "});
    expect_error(ExitCode::data, all, [&] { read({path}); });
  }
  TemporaryFolder folder_;
};

TEST_F(Megatron, DocumentsAreTheirSequences) {
  // The second has two sequences, the third none, the fourth one without tokens and another.
  const auto path = write("a", {{3, 2, 1, 0, 4}, {0, 1, 3, 3, 5}}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const Documents expected{{1, 2, 3}, {4, 5, 6}, {7, 8, 9, 10}};
  EXPECT_EQ(read({path}), expected);
  EXPECT_EQ(read({folder_ / "a.bin"}), expected) << "a .bin is read through the index beside it";
  EXPECT_EQ(read({folder_.path()}), expected) << "once";
  EXPECT_EQ(read({folder_ / "*.bin"}), expected);
  EXPECT_EQ(read({folder_ / "a.*"}), expected);
}

TEST_F(Megatron, AmongOtherFiles) {
  const auto path = write("b", {{2, 1}, {0, 1, 2}}, {1, 2, 3});
  folder_.write("a.bin", as_bytes<std::uint16_t>({4, 9, 5}));
  folder_.write("c.bin", as_bytes<std::uint16_t>({6}));
  config::Data data = tokens({folder_.path()});
  expect_error(ExitCode::usage,
               {"data.document_end: found nothing, but '" + folder_ / "a.bin" + "'",
                "valid: the token that ends a document, an integer in [0, model.vocab = 100)"},
               [&] { open_corpus(data, kVocabulary, 1); });
  data.document_end = 9;
  EXPECT_EQ(documents(*open_corpus(data, kVocabulary, 1)),
            (Documents{{4, 9}, {5}, {1, 2}, {3}, {6}}));
}

TEST_F(Megatron, EveryTypeOfIntegers) {
  const Values values{1, 2, 3};
  const std::vector<std::tuple<int, std::int64_t, std::string>> types{
      {1, 1, as_bytes<std::uint8_t>(values)}, {2, 1, as_bytes<std::int8_t>(values)},
      {3, 2, as_bytes<std::int16_t>(values)}, {4, 4, as_bytes<std::int32_t>(values)},
      {5, 8, as_bytes<std::int64_t>(values)}, {8, 2, as_bytes<std::uint16_t>(values)}};
  for (const auto& [code, width, bytes] : types) {
    const Index index{{1, 2}, {0, 1, 2}, code, width};
    folder_.write("a.bin", bytes);
    EXPECT_EQ(read({folder_.write("a.idx", index.bytes())}), (Documents{{1}, {2, 3}})) << code;
  }
}

TEST_F(Megatron, SequencesMayLieAnywhere) {
  Index index{{2, 2, 3}, {0, 2, 3}};
  index.pointers = {6, 0, 2};  // the last one overlaps both of the first document
  const auto path = write("a", index, {1, 2, 3, 4, 5});
  EXPECT_EQ(read({path}), (Documents{{4, 5, 1, 2}, {2, 3, 4}}));
}

TEST_F(Megatron, RangesOfRandomDocuments) {
  std::mt19937 random(3);
  Index index{{}, {0}};
  Values values;
  Documents expected;
  while (expected.size() < 50) {
    std::vector<Token> document;
    for (auto parts = random() % 4; parts > 0; --parts) {
      index.lengths.push_back(random() % 7);
      for (std::int64_t i = 0; i < index.lengths.back(); ++i) {
        document.push_back(static_cast<Token>(random() % kVocabulary));
      }
    }
    index.ends.push_back(std::ssize(index.lengths));
    values.insert(values.end(), document.begin(), document.end());
    if (!document.empty()) expected.push_back(document);
  }
  const auto corpus = open_corpus(tokens({write("a", index, values)}), kVocabulary, 1);
  EXPECT_EQ(documents(*corpus), expected);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto size = std::ssize(expected[i]);
    const std::int64_t begin = random() % size, end = begin + random() % (size - begin + 1);
    std::vector<Token> some(static_cast<std::size_t>(end - begin));
    corpus->read(static_cast<std::int64_t>(i), {begin, end}, some);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), expected[i].begin() + begin));
  }
}

TEST_F(Megatron, PlacesBeyond32Bits) {
  // A file of holes, with three tokens at its end: more tokens than 2^32.
  constexpr std::int64_t kBytes = (std::int64_t{1} << 33) + 6;
  Index index{{3, 3}, {0, 1, 2}};
  index.pointers = {kBytes - 6, 0};
  const auto path = write("a", index, {});
  std::filesystem::resize_file(folder_ / "a.bin", kBytes - 6);
  std::ofstream(folder_ / "a.bin", std::ios::binary | std::ios::app)
      << as_bytes<std::uint16_t>({7, 8, 9});
  EXPECT_EQ(read({path}), (Documents{{7, 8, 9}, {0, 0, 0}}));
}

TEST_F(Megatron, TokensAreCheckedWhenTheyAreRead) {
  const auto path = write("a", {{2, 3}, {0, 1, 2}}, {1, 2, 3, 100, 5});
  const auto corpus = open_corpus(tokens({path}), kVocabulary, 1);
  EXPECT_EQ(document(*corpus, 0), (std::vector<Token>{1, 2}));
  expect_error(ExitCode::data,
               {"'" + folder_ / "a.bin" + "': token 100 at position 3 is outside the vocabulary",
                "model.vocab: 100; valid are 0 to 99"},
               [&] { document(*corpus, 1); });
  Index index{{2}, {0, 1}, 5, 8};
  folder_.write("b.bin", as_bytes<std::int64_t>({1, -7}));
  expect_error(ExitCode::data, {"b.bin", "token -7 at position 1"},
               [&] { read({folder_.write("b.idx", index.bytes())}); });
}

TEST_F(Megatron, DocumentIndexesThatWereNotMerged) {
  const Values lengths{1, 2, 1, 2};
  for (const Values& ends : {Values{0, 1, 2}, Values{0}, Values{1, 2, 4}, Values{0, 1, 2, 5}}) {
    expect({"a document index from " + std::to_string(ends.front()) + " to " +
                std::to_string(ends.back()) + ", but 4 sequences",
            "not merged", "merge_datasets.py", "data.document_end"},
           Index{lengths, ends}.bytes());
  }
  expect({"does not ascend to its 4 sequences: 2 is followed by 1 at place 2"},
         Index{lengths, {0, 2, 1, 4}}.bytes());
  expect({"does not ascend to its 4 sequences: 1 is followed by 9 at place 2"},
         Index{lengths, {0, 1, 9, 4}}.bytes());
  expect({"does not ascend to its 4 sequences: 0 is followed by -1 at place 1"},
         Index{lengths, {0, -1, 4}}.bytes());
}

TEST_F(Megatron, HeadersThatLie) {
  const Index good{{1, 2}, {0, 1, 2}};
  const std::string bytes = good.bytes();
  for (const std::size_t size : {9, 17, 33}) {
    expect({"ends inside its header, after " + std::to_string(size) + " of 34 bytes"},
           bytes.substr(0, size));
  }
  for (const std::size_t size : {34, 50, 81}) {
    expect({"cut short: its header says 2 sequences and 3 ends of documents",
            std::to_string(size - 34) + " bytes follow"},
           bytes.substr(0, size));
  }
  expect({"is 1 bytes longer than its 2 sequences and 3 ends"}, bytes + "x");
  expect({"gives each of its 2 sequences a mode (multimodal)"}, bytes + "xy");
  for (const std::int64_t many : {std::int64_t{1} << 61, std::int64_t{-1}, std::int64_t{1} << 31}) {
    expect({"cut short"}, good.header(many, 3) + bytes.substr(34));
    expect({"cut short"}, good.header(2, many) + bytes.substr(34));
  }
  expect({"has version 2"}, Index{{1}, {0, 1}, 8, 2, {}, 2}.bytes());
  expect({"type 7 (float32)", "integers"}, Index{{1}, {0, 1}, 7}.bytes());
  expect({"type 6 (float64)"}, Index{{1}, {0, 1}, 6}.bytes());
  for (const int code : {0, 9, 255}) {
    expect({"type " + std::to_string(code) + ";", "1 to 5 or 8"}, Index{{1}, {0, 1}, code}.bytes());
  }
  expect({"is empty: it has 0 sequences and 1 ends"}, Index{{}, {0}}.bytes());
  expect({"is empty: it has 1 sequences and 0 ends"}, Index{{1}, {}}.bytes());
  expect({"is empty: its 2 documents have no tokens"}, Index{{0, 0}, {0, 1, 2}}.bytes());
  expect({"does not begin with MMIDIDX"}, std::string(40, 'x'));
}

TEST_F(Megatron, MoreDocumentsThanMemoryHolds) {
  // A file of holes says that 2^30 documents are empty; nothing is stored for them.
  const auto path = folder_.write("a.idx", Index{{1}, {}}.header(1, std::int64_t{1} << 30));
  folder_.write("a.bin", "ab");
  std::filesystem::resize_file(path, 34 + 12 + (std::int64_t{1} << 33));
  expect_error(ExitCode::data, {"1073741823 documents", "valid: at most 250000000"},
               [&] { read({path}); });
}

TEST_F(Megatron, SequencesOutsideTheTokens) {
  const auto with = [](std::int64_t length, std::int64_t pointer) {
    Index index{{1, length}, {0, 1, 2}};
    index.pointers = {0, pointer};
    return index.bytes();
  };
  EXPECT_NO_THROW(read({write("b", {{1, 5}, {0, 1, 2}}, {1, 2, 3, 4, 5, 6})}));
  expect({"has 6 tokens of 2 bytes at byte 2 as sequence 1", "a.bin' holds 6 tokens"}, with(6, 2));
  expect({"has 1 tokens of 2 bytes at byte 12 as sequence 1"}, with(1, 12));
  expect({"has 1 tokens of 2 bytes at byte 3 as"}, with(1, 3));
  expect({"at byte -2 as"}, with(1, -2));
  expect({"at byte 9223372036854775806 as"}, with(1, 0x7ffffffffffffffe));
  expect({"has 2147483647 tokens"}, with(0x7fffffff, 0));
  expect({"gives sequence 1 -1 tokens"}, with(-1, 0));
}

TEST_F(Megatron, TheFileOfTokens) {
  const auto path = folder_.write("a.idx", Index{{1}, {0, 1}}.bytes());
  expect_error(ExitCode::data, {"a.bin", "No such file"}, [&] { read({path}); });
  folder_.write("a.bin", "");
  expect_error(ExitCode::data, {"a.bin", "empty"}, [&] { read({path}); });
  folder_.write("a.bin", "abc");
  expect_error(ExitCode::data, {"a.bin", "3 bytes", "multiple of 2", "uint16"},
               [&] { read({path}); });
}

TEST_F(Megatron, FilesThatShrink) {
  const Values values(8192, 1);
  for (const char* name : {"a.bin", "a.idx"}) {
    const auto path = write("a", {Values(4096, 2), {0, 4096}}, values);
    const auto corpus = open_corpus(tokens({path}), kVocabulary, 1);
    std::filesystem::resize_file(folder_ / name, 10);
    expect_error(ExitCode::data, {name, "changed", "10 now"}, [&] { document(*corpus, 0); });
  }
}

TEST_F(Megatron, AnIndexOfAnotherMakeBesideTokens) {
  folder_.write("a.idx", "mine");
  const auto path = folder_.write("a.bin", as_bytes<std::uint16_t>({1, 9, 2}));
  config::Data data = tokens({path});
  data.document_end = 9;
  EXPECT_EQ(documents(*open_corpus(data, kVocabulary, 1)), (Documents{{1, 9}, {2}}));
}

}  // namespace
}  // namespace cadenza::data::test_megatron
