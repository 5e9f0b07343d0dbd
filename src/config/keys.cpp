// SPDX-License-Identifier: Apache-2.0
#include "config/keys.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "cadenza/base/nearest.hpp"
#include "config/machine_schema.hpp"

namespace cadenza::config {
namespace {

/// A visitor that lists the paths of a block, nested ones included.
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

  /// Null where `path` is no block.
  const Block* find(const std::string& path) const {
    const auto block = std::ranges::find(blocks_, path, &Block::path);
    return block == blocks_.end() ? nullptr : &*block;
  }

  /// Names `name` under its right block where it only stands in the wrong one, else what is near in
  /// `block`, else what is near with its block.
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
template void check_keys<HeadBudget>(const Value& root);

}  // namespace cadenza::config
