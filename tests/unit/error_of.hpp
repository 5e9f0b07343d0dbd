// SPDX-License-Identifier: Apache-2.0
// What readers say of files that they refuse.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cadenza/base/error.hpp"

namespace cadenza::test {

/// The message of the Error(data) that `work` throws; fails the test if there is none.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("\n")));
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace cadenza::test
