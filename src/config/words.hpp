// SPDX-License-Identifier: Apache-2.0
// The words of every choice, by enumerator. Reading, writing and suggestions use them.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::config {

template <typename Choice>
inline constexpr std::array<std::string_view, 0> kWords = {};

/// The words of all rows of a table, or of those for which `is_so` is true.
template <typename Traits, std::size_t N>
consteval std::array<std::string_view, N> words_in(const std::array<Traits, N>& table) {
  std::array<std::string_view, N> words;
  std::ranges::transform(table, words.begin(), &Traits::word);
  return words;
}
template <typename Traits, std::size_t N, typename IsSo>
std::vector<std::string_view> words_in(const std::array<Traits, N>& table, IsSo is_so) {
  std::vector<std::string_view> words;
  for (const Traits& row : table) {
    if (is_so(row)) words.push_back(row.word);
  }
  return words;
}

template <>
inline constexpr auto kWords<Source> = std::to_array<std::string_view>({"text", "tokens",
                                                                        "synthetic", "retrieval"});
template <>
inline constexpr auto kWords<RetrievalTask> = std::to_array<std::string_view>(
    {"needles", "values", "variables", "common_words", "frequent_words"});
template <>
inline constexpr auto kWords<Tokenizer> = std::to_array<std::string_view>({"byte"});
template <>
inline constexpr auto kWords<TokenType> = std::to_array<std::string_view>({"uint16", "uint32"});
template <>
inline constexpr auto kWords<Distribution> = std::to_array<std::string_view>(
    {"constant", "uniform", "lognormal", "pareto", "list", "histogram", "file"});
template <>
inline constexpr auto kWords<DrawRule> = std::to_array<std::string_view>({"independent", "pretrain",
                                                                          "prolong"});
template <>
inline constexpr auto kWords<Packing> = std::to_array<std::string_view>({"fixed", "balanced",
                                                                         "pooled", "best_fit"});
template <>
inline constexpr auto kWords<PipelineSchedule> =
    std::to_array<std::string_view>({"auto", "1f1b", "interleaved", "phase_aligned"});
template <>
inline constexpr auto kWords<Precision> = std::to_array<std::string_view>({"sums", "stored"});
template <>
inline constexpr auto kWords<AttentionKernels> = std::to_array<std::string_view>({"table",
                                                                                  "fastest"});
template <>
inline constexpr auto kWords<Shard> = std::to_array<std::string_view>({"none", "optimizer",
                                                                       "parameters"});
template <>
inline constexpr auto kWords<AttentionKind> = words_in(kAttentionKinds);
template <>
inline constexpr auto kWords<RopeScalingKind> = std::to_array<std::string_view>({"none", "linear",
                                                                                 "yarn", "llama3"});
template <>
inline constexpr auto kWords<ChunkCap> = std::to_array<std::string_view>({"megatron", "paper"});
template <>
inline constexpr auto kWords<PlacementKind> = words_in(kPlacements);
template <>
inline constexpr auto kWords<Overlap> = std::to_array<std::string_view>({"none", "ping_pong",
                                                                         "auto"});
template <>
inline constexpr auto kWords<Sharding> =
    std::to_array<std::string_view>({"contiguous", "zigzag", "dynamic", "whole", "ptrr"});
template <>
inline constexpr auto kWords<ShardUnit> = std::to_array<std::string_view>({"document", "sequence",
                                                                           "predicted"});
template <>
inline constexpr auto kWords<Priority> = std::to_array<std::string_view>({"resident", "paper",
                                                                          "public_code"});
template <>
inline constexpr auto kWords<Bound> = std::to_array<std::string_view>({"two_sided", "one_sided"});
template <>
inline constexpr auto kWords<Inputs> = std::to_array<std::string_view>({"resend", "keep"});
template <>
inline constexpr auto kWords<Gather> = std::to_array<std::string_view>({"seen", "all"});
template <>
inline constexpr auto kWords<AttentionKernel> = kAttentionKernelWords;
template <>
inline constexpr auto kWords<Offload> = std::to_array<std::string_view>({"none", "activations"});
template <>
inline constexpr auto kWords<Recompute> = std::to_array<std::string_view>({"none", "mlp",
                                                                           "attention", "layer"});
template <>
inline constexpr auto kWords<OptimizerKind> = std::to_array<std::string_view>({"adamw"});
template <>
inline constexpr auto kWords<Schedule> = std::to_array<std::string_view>({"cosine", "constant"});
template <>
inline constexpr auto kWords<FaultPhase> =
    std::to_array<std::string_view>({"all", "forward", "backward", "optimizer"});
template <>
inline constexpr auto kWords<FaultWork> = std::to_array<std::string_view>({"all", "attention",
                                                                           "dense"});
template <>
inline constexpr auto kWords<DeviceKind> = std::to_array<std::string_view>({"host", "cuda"});
template <>
inline constexpr auto kWords<Transport> = std::to_array<std::string_view>({"auto", "nccl", "mpi",
                                                                           "staged"});
template <>
inline constexpr auto kWords<Dtype> = std::to_array<std::string_view>({"bfloat16", "float32",
                                                                       "float64"});

template <typename Choice>
constexpr std::string_view word(Choice choice) {
  return kWords<Choice>[at(choice)];
}

/// The word for values that the program may choose.
inline constexpr std::string_view kAuto = "auto";

/// The word of attention.servers for "every trainer serves" (0 in Attention::servers).
inline constexpr std::string_view kInPlace = "in_place";

}  // namespace cadenza::config
