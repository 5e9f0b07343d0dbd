// SPDX-License-Identifier: Apache-2.0
// YAML text -> Value tree. The only place that knows yaml-cpp.
#pragma once

#include <string>

#include "config/value.hpp"

namespace cadenza::config {

/// The one document of `text`, a block of keys.
/// @throws Error(usage): broken YAML, several documents, a list, a scalar, nothing, a key twice.
Value parse_yaml(const std::string& text, const std::string& file);

/// The same of a list.
Value parse_yaml_list(const std::string& text, const std::string& file);

/// Puts the value of "key.path=value" into the tree in place of what was there, blocks on the way
/// included. Whether the key exists is checked later, like those of the file.
/// @throws Error(usage): no '=', an empty key, broken YAML, a way through something that is no
/// block.
void apply_override(Value& root, const std::string& argument);

}  // namespace cadenza::config
