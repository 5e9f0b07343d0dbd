// SPDX-License-Identifier: Apache-2.0
#include "value.hpp"

#include <algorithm>

namespace cadenza::config {

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
  std::string line;
  for (const char c : text.substr(0, kLongest)) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  return text.size() > kLongest ? line + "..." : line;
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

void fail_at(const Place& place, const std::string& path, const std::string& message) {
  if (path.empty() || path == place.key) {
    fail(ExitCode::usage, "{}: {}", place.text, message);
  }
  fail(ExitCode::usage, "{}: {}: {}", place.text, path, message);
}

}  // namespace cadenza::config
