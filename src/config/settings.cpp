// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cadenza/config/load.hpp"
#include "config/yaml.hpp"

namespace cadenza::config {
namespace {

std::string text_of(const Value& value) {
  std::string text;
  if (value.kind == Value::Kind::block) {
    for (const Entry& entry : value.entries) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", entry.name, text_of(entry.value));
    }
    return '{' + text + '}';
  }
  if (value.kind != Value::Kind::list) return value.text;
  for (const Value& item : value.items) text += (text.empty() ? "" : ", ") + text_of(item);
  return '[' + text + ']';
}

void collect(const Value& value, const std::string& path,
             std::map<std::string, std::string>& settings) {
  if (value.kind != Value::Kind::block) {
    settings.emplace(path, text_of(value));
    return;
  }
  for (const Entry& entry : value.entries) {
    collect(entry.value, join_path(path, entry.name), settings);
  }
}

}  // namespace

std::map<std::string, std::string> settings(const std::string& yaml, const std::string& file) {
  std::map<std::string, std::string> found;
  collect(parse_yaml(yaml, file), "", found);
  return found;
}

}  // namespace cadenza::config
