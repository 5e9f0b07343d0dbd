// SPDX-License-Identifier: Apache-2.0
#include "config/value.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "cadenza/base/text.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::config {
namespace {

// Limits of an experiment, machine or sweep. Normal files have some kilobytes; the limits bound
// what a small file may expand to, e.g. through aliases, to a fraction of a second.
constexpr std::size_t kMostValues = 100'000;
constexpr std::size_t kDeepest = 8;
constexpr std::size_t kShown = 80;  // bytes of a line shown in a message

using OriginPointer = std::shared_ptr<const Origin>;

Place place_at(const OriginPointer& origin, const YAML::Mark& mark) {
  return {origin, std::max(mark.line, 0) + 1};
}

Value value_at(const Place& place, Value::Kind kind) {
  Value value;
  value.kind = kind;
  value.place = place;
  return value;
}

struct Extent {
  std::size_t values = 1;
  std::int64_t bytes = 0;
  std::size_t depth = 0;  ///< nesting depth of blocks and lists
};

Extent extent_of(const Value& value) {
  Extent all{1, std::ssize(value.text), 0};
  const auto add = [&](const Value& inner, std::int64_t name) {
    const Extent extent = extent_of(inner);
    all.values += extent.values;
    all.bytes += extent.bytes + name;
    all.depth = std::max(all.depth, extent.depth);
  };
  for (const Value& item : value.items) add(item, 0);
  for (const Entry& entry : value.entries) add(entry.value, std::ssize(entry.name));
  if (value.kind == Value::Kind::list || value.kind == Value::Kind::block) ++all.depth;
  return all;
}

/// Builds values from the parser's events and checks the limits on the way. An alias becomes a copy
/// of its value and counts as such.
class Builder : public YAML::EventHandler {
 public:
  /// @param path  path of the root: empty for a file
  Builder(OriginPointer origin, std::string path)
      : origin_(std::move(origin)), path_(std::move(path)) {}

  /// Returns the value that was built. @throws Error(usage): a key that is a list or a block
  Value take() {
    if (odd_key_) {
      fail_at(odd_key_->place, odd_key_->path,
              "found a key that is a list or a block; valid: key: value");
    }
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (!started_) root_.place = place_at(origin_, mark);
    if (std::exchange(started_, true)) {
      fail_at(place_at(origin_, mark), "",
              "found more after the end of the first YAML document; valid: one document");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    scalar(mark, value_at(place_at(origin_, mark), Value::Kind::nothing), anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    const Place place = place_at(origin_, mark);
    if (!is_plain(text)) {
      fail_at(place, path(),
              fmt::format("found control characters in \"{}\"; valid: text without them",
                          one_line(text)));
    }
    Value value = value_at(place, Value::Kind::scalar);
    value.text = text;
    value.quoted = tag != "?";
    scalar(mark, std::move(value), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto anchored = anchors_.find(anchor);
    if (anchored == anchors_.end()) {
      fail_at(place_at(origin_, mark), path(),
              "found an alias inside its own anchor's value; valid: outside it");
    }
    count(mark, extent_of(anchored->second));
    add(anchored->second);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, Value::Kind::list, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, Value::Kind::block, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  /// A block or list that has not ended yet.
  struct Open {
    Value value;
    YAML::anchor_t anchor = 0;
    bool named = false;                          ///< block: the last entry waits for its value
    std::unordered_map<std::string, int> lines;  ///< block: lines of its keys
  };

  struct OddKey {
    Place place;
    std::string path;
  };

  void count(const YAML::Mark& mark, const Extent& extent) {
    total_.values += extent.values;
    total_.bytes += extent.bytes;
    const Place place = place_at(origin_, mark);
    if (open_.size() + extent.depth > kDeepest) {
      fail_at(place, path(),
              fmt::format("found more than {} nested levels; valid: fewer", kDeepest));
    }
    if (total_.values > kMostValues || total_.bytes > kMostYamlBytes) {
      fail_at(
          place, path(),
          fmt::format("found more than {} values or {} bytes of text (an alias counts as the value "
                      "that it stands for); valid: less, e.g. with lengths in a separate file",
                      kMostValues, kMostYamlBytes));
    }
  }

  void scalar(const YAML::Mark& mark, Value value, YAML::anchor_t anchor) {
    count(mark, extent_of(value));
    if (anchor != 0) anchors_[anchor] = value;
    add(std::move(value));
  }

  void open(const YAML::Mark& mark, Value::Kind kind, YAML::anchor_t anchor) {
    count(mark, {1, 0, 1});
    const Place place = place_at(origin_, mark);
    open_.push_back({value_at(place, kind), anchor, false, {}});
  }

  void close() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    if (closed.anchor != 0) anchors_[closed.anchor] = closed.value;
    add(std::move(closed.value));
  }

  void add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.kind == Value::Kind::list) {
      open_.back().value.items.push_back(std::move(value));
    } else if (awaits_key(open_.back())) {
      add_key(open_.back(), value);
    } else {
      Value& entry = open_.back().value.entries.back().value;
      value.place = entry.place;  // place of the key
      entry = std::move(value);
      open_.back().named = false;
    }
  }

  void add_key(Open& block, const Value& key) {
    // Reported in take() only: the parser makes a key of unclosed brackets before it complains.
    if (key.kind != Value::Kind::scalar && !odd_key_) odd_key_ = {key.place, path()};
    const auto [first, is_new] = block.lines.emplace(key.text, key.place.line);
    if (!is_new && !odd_key_) {
      fail_at(key.place, join_path(path(), key.text),
              fmt::format("found the key a second time (first: {}); valid: once",
                          Place{origin_, first->second}.text()));
    }
    block.value.entries.push_back({key.text, value_at(key.place, Value::Kind::nothing)});
    block.named = true;
  }

  static bool awaits_key(const Open& block) {
    return block.value.kind == Value::Kind::block && !block.named;
  }

  /// The path of the next value.
  std::string path() const {
    std::string path = path_;
    for (const Open& around : open_) {
      if (around.value.kind == Value::Kind::list) {
        path += fmt::format("[{}]", around.value.items.size());
      } else if (around.named) {
        path = join_path(path, around.value.entries.back().name);
      }
    }
    return path;
  }

  OriginPointer origin_;
  std::string path_;
  bool started_ = false;
  Value root_;
  Extent total_{0, 0, 0};
  std::vector<Open> open_;
  std::optional<OddKey> odd_key_;
  std::unordered_map<YAML::anchor_t, Value> anchors_;
};

/// Requires UTF-8 without control characters: yaml-cpp would accept any bytes, and UTF-16.
void require_text(const std::string& text, const OriginPointer& origin) {
  int line = 1;
  for (std::size_t at = 0; at < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view part = std::string_view(text).substr(at, end - at);
    if (part.ends_with('\r')) part.remove_suffix(1);
    if (!is_plain(part)) {
      fail_at({origin, line}, "",
              fmt::format("found '{}'; valid: UTF-8 without control characters",
                          printable(part.substr(0, kShown))));
    }
    at = end + 1;
  }
}

/// Loads the one document of `text`. YAML::Load would expand aliases before anything can be
/// counted, and YAML::LoadAll never ends on text such as ",", which starts no document and is not
/// consumed.
Value load(const std::string& text, const OriginPointer& origin, const std::string& path) {
  if (std::ssize(text) > kMostYamlBytes) {
    fail_at({origin, 1}, "",
            fmt::format("found {} bytes; valid: at most {}", text.size(), kMostYamlBytes));
  }
  require_text(text, origin);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Builder builder(origin, path);
    if (parser.HandleNextDocument(builder)) parser.HandleNextDocument(builder);
    return builder.take();
  } catch (const YAML::Exception& error) {
    fail_at(place_at(origin, error.mark), "",
            fmt::format("column {}: found broken YAML ({}); valid: YAML 1.2, special characters "
                        "in quotes",
                        std::max(error.mark.column, 0) + 1, one_line(error.msg)));
  }
}

Value load_kind(const std::string& text, const std::string& file, Value::Kind kind,
                const char* valid) {
  const auto origin = std::make_shared<const Origin>(Origin{file, ""});
  Value root = load(text, origin, "");
  root.place = {origin, 1};
  if (root.kind != kind) {
    fail_at(root.place, "", fmt::format("found {}; valid: {}", found(root), valid));
  }
  return root;
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

/// The entry `name` of `block`, which is added where it is missing.
Value& entry_of(Value& block, const std::string& name, const Place& place) {
  if (Value* value = block.find(name)) return *value;
  Value value;
  value.place = place;
  block.entries.push_back({name, value});
  return block.entries.back().value;
}

}  // namespace

Value parse_yaml(const std::string& text, const std::string& file, const char* valid) {
  return load_kind(text, file, Value::Kind::block, valid);
}

Value parse_yaml_list(const std::string& text, const std::string& file) {
  return load_kind(text, file, Value::Kind::list, "a list");
}

void apply_override(Value& root, const std::string& argument) {
  const std::size_t equals = argument.find('=');
  const std::string path = argument.substr(0, equals);
  const std::vector<std::string> names = split_path(path);
  const auto origin = std::make_shared<const Origin>(Origin{"--set " + one_line(argument), path});
  if (equals == std::string::npos || std::ranges::find(names, "") != names.end()) {
    fail(ExitCode::usage, "{}: found no key.path=value; valid: e.g. --set optimizer.lr=1e-3",
         origin->name);
  }
  const Place place{origin, 1};
  if (names.size() > kDeepest) {
    fail_at(place, path, fmt::format("found more than {} nested levels; valid: a key", kDeepest));
  }
  Value* value = &root;
  Value fresh = load(argument.substr(equals + 1), origin, path);
  if (Value* const model = root.find("model"); path == "model.config" && !fresh.text.empty()) {
    if (model != nullptr) model->entries.clear();  // keys of another model
  }
  for (const std::string& name : names) {
    if (value->kind == Value::Kind::nothing) value->kind = Value::Kind::block;
    if (value->kind != Value::Kind::block) {
      fail_at(place, path,
              fmt::format("found {} ({}) where a block with '{}' is needed; valid: a block of keys",
                          found(*value), value->place.text(), one_line(name)));
    }
    value = &entry_of(*value, name, place);
  }
  *value = std::move(fresh);
  value->place = place;
}

}  // namespace cadenza::config
