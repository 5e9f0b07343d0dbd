// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace cadenza::app {

/// Calls work(i) for every i below `count`, on all cores.
/// @throws what one of them throws
void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace cadenza::app
