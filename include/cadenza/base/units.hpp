// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza {

std::string format_bytes(double bytes);       ///< "12.3 MiB"
std::string format_count(double count);       ///< "1.2M"
std::string format_duration(double seconds);  ///< "12 us", "3.4 ms", "2.4 s", "3m12s", "2h05m"

}  // namespace cadenza
