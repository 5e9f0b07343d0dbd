// SPDX-License-Identifier: Apache-2.0
// What is fuzzed: every reader of files that come from outside. A target reads one input as the
// program would. Right is to accept it or to throw Error; anything else is a finding: a crash,
// another exception, a result that cannot be, too much time or memory.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace cadenza::fuzz {

using Bytes = std::span<const std::uint8_t>;

/// The inputs of libFuzzer's that are changed: see LLVMFuzzerCustomMutator.
using Mutate = std::size_t (*)(std::uint8_t* data, std::size_t size, std::size_t capacity,
                               unsigned seed);

struct Target {
  const char* name;
  void (*run)(Bytes input);
  Mutate mutate = nullptr;    ///< null: libFuzzer's own changes of bytes
  void (*start)() = nullptr;  ///< before the first input
};

/// Those of this program.
std::span<const Target> targets();

/// The input as text. "#x N" and the end of a line repeat what follows, to the next such line, N
/// times, "@" in it being the number of the repetition: a small input makes a large text.
std::string text_of(Bytes input);

/// Ends the process with `what`: the input is at fault.
[[noreturn]] void finding(const std::string& what);

template <typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) finding(fmt::format(format, std::forward<Args>(args)...));
}

/// A folder of this process, removed when it ends.
const std::filesystem::path& scratch_folder();

/// The input as a file; removed with the object.
class InputFile {
 public:
  InputFile(Bytes input, const std::string& name);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cadenza::fuzz
