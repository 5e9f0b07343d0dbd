// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "app/planner/search/search.hpp"

namespace cadenza::app {

/// What placement auto looked at, a row each; null where there is no number.
nlohmann::ordered_json search_json(const std::vector<Considered>& considered);

}  // namespace cadenza::app
