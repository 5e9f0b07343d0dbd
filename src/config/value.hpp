// SPDX-License-Identifier: Apache-2.0
// An experiment as it was written, before it has types: a tree in which every value knows its
// place, a line of the file or a --set; how the tree is parsed, checked for unknown keys and read
// into typed fields.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::config {

/// What the values of one piece of YAML share.
struct Origin {
  std::string name;  ///< file, or "--set key.path=value"
  std::string key;   ///< --set: its key.path; empty for a file
};

/// Where a value was written.
struct Place {
  std::shared_ptr<const Origin> origin;  ///< null for what was never written
  int line = 0;                          ///< from 1

  std::string text() const;  ///< "file:line" or "--set key.path=value"
  bool in_file() const { return origin == nullptr || origin->key.empty(); }
};

struct Entry;

struct Value {
  enum class Kind { nothing, scalar, list, block };
  Kind kind = Kind::nothing;
  std::string text;            ///< scalar
  bool quoted = false;         ///< scalar in quotes: text, never a number or a truth value
  std::vector<Value> items;    ///< list
  std::vector<Entry> entries;  ///< block, in the order of the file, no name twice
  Place place;

  const Value* find(const std::string& name) const;
  Value* find(const std::string& name);
};

struct Entry {
  std::string name;
  Value value;
};

/// "a" + "b" = "a.b"; the root's path is empty.
std::string join_path(const std::string& path, const std::string& name);

/// Place of the value at `path`; where there is none, of the innermost block around it in the file.
const Place& place_of(const Value& root, const std::string& path);

/// Text of a file as messages show it: printable, cut when it is long.
std::string one_line(const std::string& text);

/// Whether a folder of runs/ can be called `name`.
bool names_folder(const std::string& name);
inline constexpr const char* kValidName =
    "1 to 100 visible characters without '/', other than . and ..";

/// How a message names the value, e.g. `1.5`, `"three"`, `a list`, `nothing`.
std::string found(const Value& value);

/// "place: path: message"; a --set that names the path itself says it once.
std::string located(const Place& place, const std::string& path, const std::string& message);

/// Throws Error(usage) of that text.
[[noreturn]] void fail_at(const Place& place, const std::string& path, const std::string& message);

// YAML text -> Value tree. The only place that knows yaml-cpp.

/// The one document of `text`, a block of keys.
/// @throws Error(usage): broken YAML, several documents, a list, a scalar, nothing, a key twice.
Value parse_yaml(const std::string& text, const std::string& file);

/// The same of a list.
Value parse_yaml_list(const std::string& text, const std::string& file);

/// Puts the value of "key.path=value" into the tree in place of what was there, blocks on the way
/// included. Whether the key exists is checked later, like those of the file.
/// @throws Error(usage): no '=', an empty key, broken YAML, a way through something that is no
/// block.
void apply_override(Value& root, const std::string& argument);

// Which keys there are, and which one was probably meant.

/// Throws Error(usage) for the first key, top down, that a `File` (Experiment, Machine, HeadBudget)
/// does not know; it names the nearest valid one and all of its block.
template <typename File>
void check_keys(const Value& root);

// Value tree -> typed fields, each value in its range.

/// Fills an experiment from a tree whose keys are known. Keys that are not there keep their
/// defaults.
/// @throws Error(usage): a required key is missing; a value of the wrong type or out of range.
Experiment read_experiment(const Value& root);

/// The same for a machine.
Machine read_machine(const Value& root);

/// ... for a head; keys that are not there stay as in `usual`.
HeadBudget read_budget(const Value& head, const std::string& path, const HeadBudget& usual);

}  // namespace cadenza::config
