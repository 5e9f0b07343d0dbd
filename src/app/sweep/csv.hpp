// SPDX-License-Identifier: Apache-2.0
// Lines of comma-separated values (RFC 4180, cells on one line).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cadenza::app {

/// Without the line's end.
std::string to_csv(const std::vector<std::string>& cells);

/// The cells of a line without its end; none where quotes do not close.
std::optional<std::vector<std::string>> from_csv(std::string_view line);

}  // namespace cadenza::app
