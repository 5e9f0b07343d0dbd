// SPDX-License-Identifier: Apache-2.0
// Whether sanitizers watch the tests: they see in some of many alike what they would see in all.
#pragma once

namespace cadenza::testing {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace cadenza::testing
