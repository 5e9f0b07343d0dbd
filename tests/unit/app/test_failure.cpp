// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/failure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace cadenza::app::test_failure {
namespace {

using ::testing::HasSubstr;

template <typename Thrown>
Failure failure_of(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return current_failure();
  }
}

TEST(Failure, EveryExceptionHasACodeAndALine) {
  EXPECT_EQ(failure_of(Error(ExitCode::numerics, "why")).code, ExitCode::numerics);
  EXPECT_EQ(failure_of(Error(ExitCode::numerics, "why")).message, "why");
  EXPECT_EQ(failure_of(std::bad_alloc()).code, ExitCode::internal);
  EXPECT_THAT(failure_of(std::bad_alloc()).message, HasSubstr("out of memory"));
  EXPECT_THAT(failure_of(std::length_error("vector::reserve")).message, HasSubstr("out of memory"));
  const std::error_code denied = std::make_error_code(std::errc::permission_denied);
  const Failure file = failure_of(std::filesystem::filesystem_error("open", "x/y", denied));
  EXPECT_EQ(file.code, ExitCode::data);
  EXPECT_THAT(file.message, HasSubstr("x/y"));
  EXPECT_EQ(failure_of(std::system_error(denied)).code, ExitCode::internal);
  EXPECT_THAT(failure_of(std::out_of_range("at")).message, HasSubstr("internal error: at"));
  EXPECT_EQ(failure_of(7).code, ExitCode::internal);
}

TEST(Failure, AVectorThatIsTooLongIsOutOfMemory) {
  std::vector<double> values;
  volatile std::size_t size = values.max_size();
  try {
    values.reserve(size + 1);
    FAIL();
  } catch (...) {
    EXPECT_EQ(current_failure().code, ExitCode::internal);
  }
}

TEST(FailureDeathTest, ErrorsAreOneLine) {
  const auto print = [](const std::string& message) {
    print_error(message);
    std::_Exit(0);
  };
  EXPECT_EXIT(print("a\nb\x1b[2J"), ::testing::ExitedWithCode(0),
              "^cadenza: a\\\\nb\\\\x1b\\[2J\n$");
  EXPECT_EXIT(print(std::string(100'000, 'x')), ::testing::ExitedWithCode(0),
              "^cadenza: x+\\.\\.\\.\n$");
}

TEST(FailureDeathTest, WhatNobodyCatchesEndsWithALineToo) {
  const auto throw_in_a_thread = [] {
    end_on_uncaught();
    std::jthread([] { throw std::runtime_error("in a\nthread"); }).join();
  };
  EXPECT_EXIT(throw_in_a_thread(), ::testing::ExitedWithCode(1),
              "^cadenza: internal error: in a\\\\nthread\n$");
  const auto throw_where_nothing_may_be_thrown = [] {
    end_on_uncaught();
    []() noexcept { (void)std::vector<int>().at(0); }();
  };
  EXPECT_EXIT(throw_where_nothing_may_be_thrown(), ::testing::ExitedWithCode(1),
              "^cadenza: internal error: vector[^\n]*\n$");
}

}  // namespace
}  // namespace cadenza::app::test_failure
