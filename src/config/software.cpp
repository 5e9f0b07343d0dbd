// SPDX-License-Identifier: Apache-2.0
#include "cadenza/config/software.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "config/named_files.hpp"
#include "config/software_files.hpp"

namespace cadenza::config {
namespace {

constexpr std::string_view kOwn = "cadenza";

bool is_path(const std::string& text) {
  return text.find_first_of("./") != std::string::npos;
}

/// A stack or a file, and where it was named.
struct Named {
  std::string name;
  Place place;
};

/// Takes the name out of the experiment; empty where it names nothing.
Named take_name(Value& cluster, Value& software) {
  const bool word = software.kind == Value::Kind::scalar;
  const Value* const value = word ? &software : software.find("file");
  if (value == nullptr || value->kind == Value::Kind::nothing) return {};
  if (value->kind != Value::Kind::scalar) {
    fail_at(value->place, "cluster.software.file",
            fmt::format("found {}; valid: a stack or the path of its file", found(*value)));
  }
  Named named{value->text, value->place};
  word ? erase(cluster, "software") : erase(software, "file");
  return named;
}

/// The file of a stack, by its name or path.
Value file_of(const Named& named, const ReadFile& read) {
  const std::string& name = named.name;
  if (is_path(name)) {
    return parse_yaml(read(name, "cluster.software with a stack's YAML file (inputs/software)"),
                      name, "the keys of a stack");
  }
  const auto known = std::ranges::find(kSoftwareFiles, name, &SoftwareFile::name);
  if (known != std::ranges::end(kSoftwareFiles)) {
    return parse_yaml(std::string(known->text), fmt::format("inputs/software/{}.yaml", name));
  }
  std::vector<std::string_view> names{kOwn};
  for (const SoftwareFile& file : kSoftwareFiles) names.push_back(file.name);
  fail_at(named.place, "cluster.software",
          fmt::format("found {}; valid: {}, or the path of a file like those in inputs/software",
                      one_line(name), fmt::join(names, ", ")));
}

}  // namespace

void resolve_software(Value& root, const ReadFile& read) {
  Value* const cluster = root.find("cluster");
  Value* const software = cluster == nullptr ? nullptr : cluster->find("software");
  if (software == nullptr) return;
  const Named named = take_name(*cluster, *software);
  if (named.name.empty() || named.name == kOwn) return;
  const Value file = file_of(named, read);
  check_keys<Software>(file);
  for (const char* key : {"name", "source"}) {
    if (!gives(file, key)) fail_at(file.place, key, "found nothing; valid: a text");
  }
  add_missing(*cluster, file, "software");
}

}  // namespace cadenza::config
