// SPDX-License-Identifier: Apache-2.0
// The scheduler of the backward kernel under the thread sanitizer: `turns_race` must end with 0,
// `turns_race --without-waiting` (the planted fault) must not.
#include <cstring>

#include "unit/kernels/ordered_sums.hpp"

int main(int count, char** words) {
  using cadenza::testing::Waiting;
  const bool planted = count > 1 && std::strcmp(words[1], "--without-waiting") == 0;
  cadenza::testing::add_in_turns(4, planted ? Waiting::no : Waiting::yes);
  return 0;
}
