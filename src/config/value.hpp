// SPDX-License-Identifier: Apache-2.0
// What was written in an experiment, before it has types: a tree in which every value knows its
// place, whether a line of the file or a --set.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"

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

}  // namespace cadenza::config
