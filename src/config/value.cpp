// SPDX-License-Identifier: Apache-2.0
#include "config/value.hpp"

#include <algorithm>

#include "cadenza/base/text.hpp"

namespace cadenza::config {

std::string Place::text() const {
  if (origin == nullptr) return "";
  return in_file() ? fmt::format("{}:{}", origin->name, line) : origin->name;
}

const Value* Value::find(const std::string& name) const {
  const auto entry = std::ranges::find(entries, name, &Entry::name);
  return entry == entries.end() ? nullptr : &entry->value;
}

Value* Value::find(const std::string& name) {
  return const_cast<Value*>(std::as_const(*this).find(name));
}

std::string join_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

const Place& place_of(const Value& root, const std::string& path) {
  const Value* value = &root;
  const Place* in_file = &root.place;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    value = value->find(path.substr(begin, end - begin));
    if (value == nullptr) return *in_file;
    if (value->place.in_file()) in_file = &value->place;
    begin = end + 1;
  }
  return value->place;
}

std::string one_line(const std::string& text) {
  constexpr std::size_t kLongest = 120;
  const std::string line = printable(text.substr(0, kLongest));
  return text.size() > kLongest ? line + "..." : line;
}

bool names_folder(const std::string& name) {
  constexpr std::size_t kLongest = 100;  // leaves room for -simulated and .12 in a folder's name
  return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
         name.find_first_not_of(' ') != std::string::npos && name.find('/') == std::string::npos &&
         printable(name) == name;
}

std::string found(const Value& value) {
  switch (value.kind) {
    case Value::Kind::nothing:
      return "nothing";
    case Value::Kind::list:
      return "a list";
    case Value::Kind::block:
      return "a block of keys";
    case Value::Kind::scalar:
      break;
  }
  const std::string text = one_line(value.text);
  return value.quoted ? '"' + text + '"' : text;
}

std::string located(const Place& place, const std::string& path, const std::string& message) {
  const bool said = path.empty() || (!place.in_file() && path == place.origin->key);
  return said ? fmt::format("{}: {}", place.text(), message)
              : fmt::format("{}: {}: {}", place.text(), one_line(path), message);
}

void fail_at(const Place& place, const std::string& path, const std::string& message) {
  fail(ExitCode::usage, "{}", located(place, path, message));
}

}  // namespace cadenza::config
