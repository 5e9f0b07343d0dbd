// SPDX-License-Identifier: Apache-2.0
// The words of every choice, in the order of its enumerators: read, written and suggested from
// here.
#pragma once

#include <array>
#include <string_view>

#include "cadenza/config/experiment.hpp"

namespace cadenza::config {

template <typename Choice>
inline constexpr std::array<std::string_view, 0> kWords = {};

template <>
inline constexpr auto kWords<Source> = std::to_array<std::string_view>({"text", "tokens",
                                                                        "synthetic"});
template <>
inline constexpr auto kWords<Tokenizer> = std::to_array<std::string_view>({"byte"});
template <>
inline constexpr auto kWords<TokenType> = std::to_array<std::string_view>({"uint16", "uint32"});
template <>
inline constexpr auto kWords<Distribution> =
    std::to_array<std::string_view>({"constant", "uniform", "lognormal", "pareto", "list"});
template <>
inline constexpr auto kWords<Packing> = std::to_array<std::string_view>({"fixed"});
template <>
inline constexpr auto kWords<AttentionKind> = std::to_array<std::string_view>({"full"});
template <>
inline constexpr auto kWords<PlacementKind> = std::to_array<std::string_view>({"colocated", "cad"});
template <>
inline constexpr auto kWords<Overlap> = std::to_array<std::string_view>({"none"});
template <>
inline constexpr auto kWords<OptimizerKind> = std::to_array<std::string_view>({"adamw"});
template <>
inline constexpr auto kWords<Schedule> = std::to_array<std::string_view>({"cosine", "constant"});
template <>
inline constexpr auto kWords<DeviceKind> = std::to_array<std::string_view>({"host", "cuda"});
template <>
inline constexpr auto kWords<Dtype> = std::to_array<std::string_view>({"bfloat16", "float32",
                                                                       "float64"});

template <typename Choice>
constexpr std::string_view word(Choice choice) {
  return kWords<Choice>[static_cast<std::size_t>(choice)];
}

/// The word of attention.servers for "every trainer serves" (0 in Attention::servers).
inline constexpr std::string_view kInPlace = "in_place";

}  // namespace cadenza::config
