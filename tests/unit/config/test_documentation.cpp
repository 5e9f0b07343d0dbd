// SPDX-License-Identifier: Apache-2.0
// docs/experiment.md has a row for every key, no row for any other, and true defaults; the
// experiments in inputs/ are valid.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cadenza/config/machine.hpp"
#include "cadenza/config/sweep.hpp"
#include "support.hpp"

namespace cadenza::config::test_documentation {
namespace {

struct Row {
  std::string default_value;
  std::string meaning;
};

std::string strip(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

/// The content of a cell that is one `literal`, else "".
std::string literal(const std::string& cell) {
  const bool one = cell.size() > 2 && cell.front() == '`' && cell.find('`', 1) == cell.size() - 1;
  return one ? cell.substr(1, cell.size() - 2) : "";
}

std::filesystem::path repository() {
  return std::filesystem::path(__FILE__).parent_path() / "../../..";
}

std::map<std::string, Row> documented(const std::string& page) {
  std::ifstream file(repository() / page);
  EXPECT_TRUE(file) << page;
  std::map<std::string, Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(strip(cell));
    EXPECT_EQ(cells.size(), 6u) << line;
    rows[literal(cells[0])] = {cells[3], cells[5]};
  }
  return rows;
}

/// Key paths of YAML in block style, two spaces per level.
std::vector<std::string> key_paths(const std::string& yaml) {
  std::vector<std::string> paths;
  std::vector<std::string> parents;
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t indent = line.find_first_not_of(' ');
    const std::size_t colon = line.find(':');
    parents.resize(indent / 2);
    std::string path;
    for (const std::string& parent : parents) path += parent + ".";
    const std::string name = line.substr(indent, colon - indent);
    if (colon + 1 == line.size()) {
      parents.push_back(name);
    } else {
      paths.push_back(path + name);
    }
  }
  return paths;
}

/// Documents every key of `yaml`, which has all of them, and no other.
/// @param others  keys that are never written
void expect_documented(const std::string& page, const std::string& yaml,
                       const std::vector<std::string>& others = {}) {
  std::vector<std::string> rows;
  for (const auto& [key, row] : documented(page)) {
    rows.push_back(key);
    EXPECT_FALSE(row.meaning.empty()) << key;
    EXPECT_FALSE(row.default_value.empty()) << key;
  }
  std::vector<std::string> keys = key_paths(yaml);
  keys.insert(keys.end(), others.begin(), others.end());
  EXPECT_THAT(rows, ::testing::UnorderedElementsAreArray(keys));
}

constexpr const char* kExperimentPage = "docs/experiment.md";
constexpr const char* kMachinePage = "docs/machine.md";

TEST(Documentation, HasEveryKeyAndNoOther) {
  expect_documented(kExperimentPage, to_yaml(parse(kGood)),
                    {"model.config", "cluster.software.file"});
  expect_documented(kMachinePage, to_yaml(Machine{}));
}

TEST(Documentation, DefaultsAreTheDefaults) {
  const std::string minimal =
      "model: {layers: 1, d_model: 8, heads: 2, ffn: 8, vocab: 300}\n"
      "data: {source: synthetic}\nbatch: {tokens: 64, microbatch: 64}\n";
  const std::string expected = to_yaml(parse(minimal));
  int checked = 0;
  for (const auto& [key, row] : documented(kExperimentPage)) {
    const std::string value = literal(row.default_value);
    if (value.empty()) continue;  // required, or the same as another key
    EXPECT_EQ(to_yaml(parse(minimal, {key + "=" + value})), expected) << key << " = " << value;
    ++checked;
  }
  EXPECT_GT(checked, 30);
}

/// A file of blocks that gives values by path: "a.b".
std::string file_of(const std::map<std::string, std::string>& values) {
  std::string text;
  std::vector<std::string> around;  // blocks that are open
  for (const auto& [path, value] : values) {
    std::vector<std::string> names;
    std::istringstream words(path);
    for (std::string name; std::getline(words, name, '.');) names.push_back(name);
    const auto [mine, theirs] = std::ranges::mismatch(names, around);
    around.erase(theirs, around.end());
    for (auto name = names.begin() + std::ssize(around); name != names.end(); ++name) {
      text += std::string(2 * around.size(), ' ') + *name + ":";
      text += name + 1 == names.end() ? " " + value + "\n" : "\n";
      if (name + 1 != names.end()) around.push_back(*name);
    }
  }
  return text;
}

TEST(Documentation, DefaultsOfMachinesAreTheDefaults) {
  const std::map<std::string, std::string> required = {{"name", "n"},
                                                       {"source", "s"},
                                                       {"attention.flops_per_second", "1e10"},
                                                       {"products.flops_per_second", "1e10"},
                                                       {"links.inside.bytes_per_second", "1e9"}};
  const std::string expected = to_yaml(parse_machine(file_of(required), "m.yaml"));
  int checked = 0;
  for (const auto& [key, row] : documented(kMachinePage)) {
    const std::string value = literal(row.default_value);
    EXPECT_EQ(value.empty(), required.contains(key)) << key;
    if (value.empty()) continue;
    std::map<std::string, std::string> given = required;
    given[key] = value;
    EXPECT_EQ(to_yaml(parse_machine(file_of(given), "m.yaml")), expected) << key;
    ++checked;
  }
  EXPECT_GT(checked, 30);
}

std::string text_of(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

/// Reads a file that an input names, relative to the repository.
std::string read_named(const std::string& path, const std::string&) {
  return text_of(repository() / path);
}

TEST(Inputs, AreValidAndUseAllTheirKeys) {
  namespace fs = std::filesystem;
  int checked = 0;
  std::vector<fs::path> files = {repository() / "bench/clusters/34b.yaml",
                                 repository() / "bench/benchmarks/unequal_ranks.yaml"};
  for (const auto& entry : fs::recursive_directory_iterator(repository() / "inputs")) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  for (const fs::path& file : files) {
    SCOPED_TRACE(file);
    const std::string text = text_of(file);
    if (file.parent_path().filename() == "machines") {
      EXPECT_NO_THROW(parse_machine(text, file));
      continue;
    }
    if (file.parent_path().filename() == "software") continue;  // test_software.cpp has them
    UnusedKeys unused;
    if (text.find("\naxes:") == std::string::npos) {
      EXPECT_NO_THROW(parse_experiment(text, file, {}, &unused, HeadsOf::model, read_named));
    } else {
      const Sweep sweep = parse_sweep(text, file);
      const fs::path base = file.parent_path() / sweep.base;
      const Base experiment = parse_base(text_of(base), base);
      for (const SweepPoint& point : points_of(sweep)) {
        try {
          experiment_of(point, experiment, {}, &unused, read_named);
        } catch (const Error&) {  // a layout that does not divide: its row says so
        }
      }
    }
    EXPECT_THAT(unused.lines(), ::testing::IsEmpty());
    ++checked;
  }
  EXPECT_GT(checked, 40);
}

}  // namespace
}  // namespace cadenza::config::test_documentation
