// SPDX-License-Identifier: Apache-2.0
// What no host and no device computes, for all kernels, types and head_dims.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cadenza/kernels/attention.hpp"

namespace cadenza {
namespace {

using enum AttentionKernel;

/// What docs/experiment.md says of a kernel.
struct Rule {
  AttentionKernel kernel;
  std::set<std::string> types;
  bool (*takes)(int head_dim);
};

bool any(int) {
  return true;
}
bool tuned(int head_dim) {
  return head_dim % 32 == 0 && head_dim <= 256;
}
bool tensor_cores(int head_dim) {
  return tuned(head_dim) && head_dim <= 128;
}

const std::vector<Rule> kHost = {{amx, {"bfloat16"}, tuned},
                                 {avx512_bf16, {"bfloat16"}, tuned},
                                 {avx512, {"bfloat16", "float32"}, tuned},
                                 {avx2, {"bfloat16", "float32"}, tuned},
                                 {portable, {"float32", "float64"}, any}};
const std::vector<Rule> kDevice = {
    {mma, {"bfloat16"}, tensor_cores},
    {sm90, {"bfloat16"}, [](int head_dim) { return head_dim == 64 || head_dim == 128; }},
    {portable, {"float32", "float64"}, any}};

bool computes(const std::vector<Rule>& rules, AttentionKernel kernel, const std::string& type,
              int head_dim) {
  for (const Rule& rule : rules) {
    const bool meant = kernel == automatic || rule.kernel == kernel;
    if (meant && rule.types.contains(type) && rule.takes(head_dim)) return true;
  }
  return false;
}

template <typename Real>
void check(const std::string& type) {
  for (std::size_t kernel = 0; kernel < kAttentionKernelWords.size(); ++kernel) {
    const auto name = static_cast<AttentionKernel>(kernel);
    for (const int head_dim : {2, 8, 16, 32, 40, 64, 96, 128, 160, 256, 288, 512}) {
      SCOPED_TRACE(std::string(word(name)) + " " + type + " " + std::to_string(head_dim));
      const AttentionShape shape = {2, 1, head_dim};
      const std::string host = kernels::refused_everywhere<Real>(shape, name, false);
      const std::string device = kernels::refused_everywhere<Real>(shape, name, true);
      EXPECT_EQ(host.empty(), computes(kHost, name, type, head_dim)) << host;
      EXPECT_EQ(device.empty(), computes(kDevice, name, type, head_dim)) << device;
      for (const std::string& refusal : {host, device}) {
        if (refusal.empty()) continue;
        EXPECT_THAT(refusal, ::testing::AnyOf(::testing::HasSubstr("valid"),
                                              ::testing::HasSubstr("by auto")));
      }
    }
  }
  for (const AttentionKernel here : kernels::available_attention_kernels<Real>()) {
    EXPECT_EQ(kernels::refused_everywhere<Real>({2, 1, 64}, here, kDeviceIsCuda), "");
  }
}

TEST(Refused, WhatNoHostAndNoDeviceComputes) {
  check<float>("float32");
  check<double>("float64");
  check<bfloat16>("bfloat16");
}

}  // namespace
}  // namespace cadenza
