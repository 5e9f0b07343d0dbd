// SPDX-License-Identifier: Apache-2.0
#include "config/value.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "cadenza/base/text.hpp"
#include "config/machine_schema.hpp"

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

bool gives(const Value& root, const std::string& path) {
  const Value* value = &root;
  for (std::size_t begin = 0; value != nullptr && begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    value = value->find(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return value != nullptr;
}

std::string one_line(const std::string& text) {
  constexpr std::size_t kLongest = 120;
  return printable(text, kLongest);
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

void add(Value& block, std::string_view path, const Value& value) {
  block.kind = Value::Kind::block;
  const std::size_t point = path.find('.');
  const std::string name(path.substr(0, point));
  Value* inner = block.find(name);
  if (inner == nullptr) {
    Value fresh;
    fresh.place = value.place;
    inner = &block.entries.emplace_back(name, fresh).value;
    if (point == path.npos) *inner = value;
  }
  const bool open = inner->kind == Value::Kind::block || inner->kind == Value::Kind::nothing;
  if (point != path.npos && open) add(*inner, path.substr(point + 1), value);
}

void add_missing(Value& block, const Value& more, const std::string& path) {
  for (const Entry& entry : more.entries) {
    const std::string own = join_path(path, entry.name);
    if (!entry.value.entries.empty()) {
      add_missing(block, entry.value, own);
    } else {
      add(block, own, entry.value);
    }
  }
}

void erase(Value& block, std::string_view name) {
  std::erase_if(block.entries, [&](const Entry& entry) { return entry.name == name; });
}

void fail_at(const Place& place, const std::string& path, const std::string& message) {
  fail(ExitCode::usage, "{}", located(place, path, message));
}

namespace {

/// A visitor that lists the keys of a schema, block by block.
class KeyList {
 public:
  struct Block {
    std::string path;
    std::vector<std::string> names;
  };

  template <typename File>
  explicit KeyList(File file) : blocks_{{"", {}}} {
    describe(*this, file);
  }

  template <typename Field, typename... Spec>
  void key(const char* name, Field&, const Spec&...) {
    blocks_[current_].names.push_back(name);
  }
  template <typename Field, typename... Spec>
  void required(const char* name, Field& field, const char*, const Spec&...) {
    key(name, field);
  }
  void stand_in(const char* name) { blocks_[current_].names.push_back(name); }
  template <typename Struct>
  void block(const char* name, Struct& fields) {
    const std::size_t outer = current_;
    blocks_[outer].names.push_back(name);
    blocks_.push_back({join_path(blocks_[outer].path, name), {}});
    current_ = blocks_.size() - 1;
    describe(*this, fields);
    current_ = outer;
  }
  template <typename Struct>
  void blocks(const char* name, std::vector<Struct>&) {
    Struct one;
    block(name, one);
  }

  /// The block at `path`; null where there is none.
  const Block* find(const std::string& path) const {
    const auto block = std::ranges::find(blocks_, path, &Block::path);
    return block == blocks_.end() ? nullptr : &*block;
  }

  /// Suggests a key for an unknown `name` in `block`: the same name in another block, else a
  /// similar one in `block`, else a similar path.
  std::string hint(const std::string& name, const Block& block) const {
    for (const Block& other : blocks_) {
      if (std::ranges::count(other.names, name) == 0) continue;
      return fmt::format(", nearest is '{}'", join_path(other.path, name));
    }
    const std::string hint = nearest_hint(name, block.names);
    return hint.empty() ? nearest_hint(name, paths()) : hint;
  }

 private:
  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const Block& block : blocks_) {
      for (const std::string& name : block.names) all.push_back(join_path(block.path, name));
    }
    return all;
  }

  std::vector<Block> blocks_;
  std::size_t current_ = 0;
};

void check_block(const Value& value, const KeyList::Block& block, const KeyList& known) {
  for (const Entry& entry : value.entries) {
    const std::string path = join_path(block.path, one_line(entry.name));
    if (std::ranges::count(block.names, entry.name) == 0) {
      fail_at(entry.value.place, path,
              fmt::format("found an unknown key{}; valid: {}", known.hint(entry.name, block),
                          fmt::join(block.names, ", ")));
    }
    const KeyList::Block* inner = known.find(path);
    if (inner == nullptr) continue;
    check_block(entry.value, *inner, known);
    for (const Value& item : entry.value.items) check_block(item, *inner, known);
  }
}

}  // namespace

template <typename File>
void check_keys(const Value& root) {
  static const KeyList known{File{}};
  check_block(root, *known.find(""), known);
}

template void check_keys<Experiment>(const Value& root);
template void check_keys<Machine>(const Value& root);
template void check_keys<Software>(const Value& root);
template void check_keys<HeadBudget>(const Value& root);

}  // namespace cadenza::config
