// SPDX-License-Identifier: Apache-2.0
#include "yaml.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

namespace cadenza::config {
namespace {

/// Names the places of one piece of YAML: lines of a file, or one --set for all of it.
struct Origin {
  std::string name;     ///< file, or "--set key.path=value"
  std::string set_key;  ///< empty for a file

  Place at(const YAML::Mark& mark) const {
    if (!set_key.empty()) return {name, set_key};
    return {fmt::format("{}:{}", name, std::max(mark.line, 0) + 1), ""};
  }
};

/// Copies yaml-cpp's nodes, which share and alias, into plain values.
class Converter {
 public:
  explicit Converter(const Origin& origin) : origin_(origin) {}

  Value convert(const YAML::Node& node, const Place& place, const std::string& path,
                int depth) const {
    // An anchor may contain itself, so depth is what ends the recursion.
    constexpr int kDeepest = 8;
    if (depth > kDeepest) {
      fail_at(place, path,
              fmt::format("found more than {} levels; valid: blocks of keys", kDeepest));
    }
    Value value;
    value.place = place;
    if (node.IsScalar()) {
      value.kind = Value::Kind::scalar;
      value.text = node.Scalar();
      value.quoted = node.Tag() != "?";
    } else if (node.IsSequence()) {
      value.kind = Value::Kind::list;
      for (const YAML::Node& item : node) {
        const std::string name = fmt::format("{}[{}]", path, value.items.size());
        value.items.push_back(convert(item, origin_.at(item.Mark()), name, depth + 1));
      }
    } else if (node.IsMap()) {
      value.kind = Value::Kind::block;
      for (const auto& entry : node) add_entry(value, entry.first, entry.second, path, depth);
    }
    return value;
  }

 private:
  void add_entry(Value& block, const YAML::Node& key, const YAML::Node& node,
                 const std::string& path, int depth) const {
    const Place place = origin_.at(key.Mark());
    if (!key.IsScalar()) fail_at(place, path, "found a key that is no word; valid: key: value");
    const std::string child = join_path(path, key.Scalar());
    if (const Value* first = block.find(key.Scalar())) {
      fail_at(
          place, one_line(child),
          fmt::format("found the key a second time (first: {}); valid: once", first->place.text));
    }
    block.entries.push_back({key.Scalar(), convert(node, place, child, depth + 1)});
  }

  const Origin& origin_;
};

/// Notes where a document starts and drops what is in it.
class DocumentStart : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
  const YAML::Mark& mark() const { return mark_; }

 private:
  YAML::Mark mark_;
};

/// The one document of `text`; null where there is none. YAML::LoadAll would not do: it never ends
/// on text such as "," that starts no document and is not consumed either.
YAML::Node load(const std::string& text, const Origin& origin) {
  try {
    const YAML::Node node = YAML::Load(text);
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentStart document;
    if (parser.HandleNextDocument(document) && parser.HandleNextDocument(document)) {
      fail_at(origin.at(document.mark()), "",
              "found more after the end of the first YAML document; valid: one document");
    }
    return node;
  } catch (const YAML::Exception& error) {
    fail_at(origin.at(error.mark), "",
            fmt::format("column {}: found broken YAML ({}); valid: YAML 1.2, special characters "
                        "in quotes",
                        std::max(error.mark.column, 0) + 1, one_line(error.msg)));
  }
}

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> names(1);
  for (const char c : path) {
    if (c == '.') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

/// The entry `name` of `block`, made where it is missing.
Value& entry_of(Value& block, const std::string& name, const Place& place) {
  if (Value* value = block.find(name)) return *value;
  Value value;
  value.place = place;
  block.entries.push_back({name, value});
  return block.entries.back().value;
}

}  // namespace

Value parse_yaml(const std::string& text, const std::string& file) {
  const Origin origin{file, ""};
  const Place top{file + ":1", ""};
  const std::string valid = "valid: blocks of keys such as model:, data: and batch:";
  Value root = Converter(origin).convert(load(text, origin), top, "", 0);
  if (root.kind != Value::Kind::block)
    fail_at(top, "", fmt::format("found {}; {}", found(root), valid));
  return root;
}

void apply_override(Value& root, const std::string& argument) {
  const std::size_t equals = argument.find('=');
  const std::string path = argument.substr(0, equals);
  const std::vector<std::string> names = split_path(path);
  const Origin origin{"--set " + one_line(argument), path};
  if (equals == std::string::npos || std::ranges::find(names, "") != names.end()) {
    fail(ExitCode::usage, "{}: found no key.path=value; valid: e.g. --set optimizer.lr=1e-3",
         origin.name);
  }
  const Place place = origin.at(YAML::Mark());
  const YAML::Node node = load(argument.substr(equals + 1), origin);

  Value* value = &root;
  for (const std::string& name : names) {
    if (value->kind == Value::Kind::nothing) value->kind = Value::Kind::block;
    if (value->kind != Value::Kind::block) {
      fail_at(place, path,
              fmt::format("found {} ({}) above '{}'; valid: a block of keys there", found(*value),
                          value->place.text, one_line(name)));
    }
    value = &entry_of(*value, name, place);
  }
  *value = Converter(origin).convert(node, place, path, 0);
}

}  // namespace cadenza::config
