// SPDX-License-Identifier: Apache-2.0
#include "target.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace cadenza::fuzz {
namespace {

namespace fs = std::filesystem;

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "cadenza-fuzz-XXXXXX").string();
    require(mkdtemp(name.data()) != nullptr, "{}: cannot be made", name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Adds `part` to `text` `count` times, as far as there is room for it.
void repeat(std::string_view part, std::size_t count, std::string& text) {
  constexpr std::size_t kLongest = 2'000'000;
  if (part.empty()) return;
  for (std::size_t i = 0; i < count && text.size() + part.size() < kLongest; ++i) {
    for (const char c : part) c == '@' ? text += std::to_string(i) : text += c;
  }
}

}  // namespace

std::string text_of(Bytes input) {
  constexpr std::string_view kRepeat = "#x ";
  const std::string_view all(reinterpret_cast<const char*>(input.data()), input.size());
  std::size_t at = std::min(all.find(kRepeat), all.size());
  std::string text(all.substr(0, at));
  while (at < all.size()) {
    const std::size_t line = std::min(all.find('\n', at), all.size() - 1) + 1;
    const std::size_t next = std::min(all.find(kRepeat, line), all.size());
    std::size_t count = 1;
    std::from_chars(all.data() + at + kRepeat.size(), all.data() + line, count);
    repeat(all.substr(line, next - line), count, text);
    at = next;
  }
  return text;
}

void finding(const std::string& what) {
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

const fs::path& scratch_folder() {
  static const ScratchFolder folder;
  return folder.path();
}

InputFile::InputFile(Bytes input, const std::string& name)
    : path_((scratch_folder() / name).string()) {
  std::ofstream file(path_, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(input.data()),
             static_cast<std::streamsize>(input.size()));
  file.close();
  require(file.good(), "{}: cannot be written", path_);
}

InputFile::~InputFile() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

}  // namespace cadenza::fuzz
