// SPDX-License-Identifier: Apache-2.0
// An experiment as it was written, before it has types: a tree in which every value has its place,
// a line of the file or a --set. The tree is parsed, checked for unknown keys and read into typed
// fields.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::config {

/// The source of a piece of YAML, shared by all of its values.
struct Origin {
  std::string name;  ///< file, or "--set key.path=value"
  std::string key;   ///< --set: its key.path; empty for a file
};

/// The place where a value was written.
struct Place {
  std::shared_ptr<const Origin> origin;  ///< null where it was never written
  int line = 0;                          ///< from 1

  std::string text() const;  ///< "file:line" or "--set key.path=value"
  bool in_file() const { return origin == nullptr || origin->key.empty(); }
};

struct Entry;

struct Value {
  enum class Kind { nothing, scalar, list, block };
  Kind kind = Kind::nothing;
  std::string text;            ///< scalar
  bool quoted = false;         ///< scalar in quotes: text, never a number or a boolean
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

/// Joins a path and a name: "a" + "b" = "a.b"; the root's path is empty.
std::string join_path(const std::string& path, const std::string& name);

/// Place of the value at `path`, or of the innermost block around it where there is none.
const Place& place_of(const Value& root, const std::string& path);

/// Whether there is a value at "key", "block.key" or deeper.
bool gives(const Value& root, const std::string& path);

// --- Changes of the tree ---

/// Sets the value at `path` below `block`, unless it is there.
void add(Value& block, std::string_view path, const Value& value);
/// Adds the leaves of `more` that `block` lacks. @param path  where `more` belongs in it
void add_missing(Value& block, const Value& more, const std::string& path = "");
/// Removes the entry `name`, if it is there.
void erase(Value& block, std::string_view name);

/// Text of a file for messages: printable, and cut when it is long.
std::string one_line(const std::string& text);

/// Whether `name` can be the name of a folder in runs/.
bool names_folder(const std::string& name);
inline constexpr const char* kValidName =
    "1 to 100 visible characters without '/', other than . and ..";

/// The value in words for messages: `1.5`, `"three"`, `a list`, `nothing`.
std::string found(const Value& value);

/// "place: path: message", without the path where the place is a --set that names it.
std::string located(const Place& place, const std::string& path, const std::string& message);

/// Throws Error(usage) with the text of located().
[[noreturn]] void fail_at(const Place& place, const std::string& path, const std::string& message);

// --- From YAML text to a tree (yaml.cpp, the only file that uses yaml-cpp) ---

/// Parses the one document of `text`, which must be a block of keys.
/// @param valid  describes it in messages
/// @throws Error(usage): broken YAML, several documents, a list, a scalar, nothing, a key twice.
Value parse_yaml(const std::string& text, const std::string& file,
                 const char* valid = "blocks of keys such as model:, data: and batch:");

/// Parses the one document of `text`, which must be a list. @throws Error(usage)
Value parse_yaml_list(const std::string& text, const std::string& file);

/// Replaces the value at "key.path" by that of "key.path=value", and adds missing blocks on the
/// way. Whether the key exists is checked later, as for keys of the file. A model.config replaces
/// the whole block `model`.
/// @throws Error(usage): no '=', an empty key, broken YAML, a path through something other than a
/// block.
void apply_override(Value& root, const std::string& argument);

// --- Unknown keys ---

/// Throws Error(usage) for the first key, top down, that is not in the schema of `File`
/// (Experiment, Machine, Software, HeadBudget); the message names the nearest valid key and all
/// keys of the block.
template <typename File>
void check_keys(const Value& root);

// --- From a tree to typed fields, each value in its range ---

/// Reads an experiment from a tree whose keys are known. Missing keys keep their defaults.
/// @throws Error(usage): a required key is missing; a value of the wrong type or out of range.
Experiment read_experiment(const Value& root);

/// Reads a machine from a tree whose keys are known. @throws Error(usage)
Machine read_machine(const Value& root);

/// Reads the budget of a head; missing keys stay as in `usual`. @throws Error(usage)
HeadBudget read_budget(const Value& head, const std::string& path, const HeadBudget& usual);

}  // namespace cadenza::config
