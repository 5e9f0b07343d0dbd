// SPDX-License-Identifier: Apache-2.0
// A pass of attention around cuDNN's calls: queries are rotated before them, outputs merged and
// gradients added behind them. Kokkos kernels, so that they run in every build; what computes the
// calls is a parameter.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "cadenza/base/pass.hpp"
#include "cadenza/kernels/attention.hpp"
#include "sdpa_calls.hpp"

namespace cadenza::kernels::cudnn {

/// Puts one call on the stream.
using Sdpa = std::function<void(const SdpaShape&, const SdpaRows&)>;

/// The rows of a buffer that tasks of one map of positions read, rotated.
struct RotatedRows {
  int query_rows = 0;
  PositionMap map;
  Range tokens;
  std::size_t at = 0;  ///< in the pass's memory, in bytes
};

class StagedPass {
 public:
  /// The arguments are to outlive it.
  StagedPass(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
             const TaskList<bfloat16>& list);

  const std::vector<SdpaCall>& calls() const { return calls_; }
  /// Device memory that `run` needs, to be aligned to kAlignment.
  std::size_t bytes() const { return bytes_; }
  static constexpr std::size_t kAlignment = 256;

  /// Puts the pass on the stream; `memory` is its own until that has run.
  void run(unsigned char* memory, const Sdpa& sdpa) const;

 private:
  void plan_rotations();
  void plan_results();
  std::size_t take(std::size_t bytes);

  void rotate(unsigned char* memory, const RotatedRows& rows) const;
  SdpaRows rows_of(const SdpaCall& call, unsigned char* memory) const;
  void merge(const SdpaCall& call, const SdpaRows& rows, unsigned char* memory) const;
  void prepare_gradients(const SdpaCall& call, const SdpaRows& rows, unsigned char* memory) const;
  void add_gradients(const SdpaCall& call, const SdpaRows& rows) const;

  const QueryRows<bfloat16>& queries_of(const SdpaCall& call) const;
  const KeyRows<bfloat16>& keys_of(const SdpaCall& call) const;

  Pass pass_;
  const AttentionShape& shape_;
  const RotaryTable<float>& rotary_;
  const TaskList<bfloat16>& list_;
  std::vector<SdpaCall> calls_;
  std::vector<RotatedRows> rotated_;
  std::vector<int> rotated_of_task_;
  /// Results of one call, in bytes from the memory's begin: the next call's take their place.
  struct {
    std::size_t out = 0, stats = 0, factors = 0, dq = 0, dk = 0, dv = 0;
  } at_;
  std::size_t bytes_ = 0;
};

}  // namespace cadenza::kernels::cudnn
