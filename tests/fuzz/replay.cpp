// SPDX-License-Identifier: Apache-2.0
// main() where libFuzzer is not installed: gives the target every file below the arguments once.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "libfuzzer.hpp"

namespace {

namespace fs = std::filesystem;

std::size_t run(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  std::fprintf(stderr, "%s\n", path.c_str());
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  std::size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with('-')) continue;
    if (!fs::is_directory(argv[i])) {
      inputs += run(argv[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(argv[i])) inputs += run(entry.path());
  }
  std::fprintf(stderr, "%zu inputs; no libFuzzer here, so nothing was changed in them\n", inputs);
  return inputs > 0 ? 0 : 1;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t*, std::size_t size, std::size_t) {
  return size;
}
