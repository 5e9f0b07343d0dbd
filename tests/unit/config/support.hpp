// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::config {

/// A complete experiment; line numbers matter to the tests.
inline const std::string kGood =
    "name: small\n"                           // 1
    "model:\n"                                // 2
    "  layers: 2\n"                           // 3
    "  d_model: 64\n"                         // 4
    "  heads: 4\n"                            // 5
    "  ffn: 96\n"                             // 6
    "  vocab: 300\n"                          // 7
    "data: {source: text, path: [corpus]}\n"  // 8
    "batch:\n"                                // 9
    "  tokens: 4096\n"                        // 10
    "  microbatch: 512\n"                     // 11
    "optimizer:\n"                            // 12
    "  lr: 3e-4\n";                           // 13

using Overrides = std::vector<std::string>;

inline Experiment parse(const std::string& text, const Overrides& overrides = {}) {
  return parse_experiment(text, "e.yaml", overrides);
}

inline std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

/// kGood with the first `from` replaced.
inline std::string changed(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// The message that parsing ends with: one line, of exit code usage.
inline std::string error_of(const std::string& text, const Overrides& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error for:\n" << text << ::testing::PrintToString(overrides);
  return "";
}

}  // namespace cadenza::config
