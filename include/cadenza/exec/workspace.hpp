// SPDX-License-Identifier: Apache-2.0
// Memory of attention: message buffers of a stage, and a server's rows of tokens that live on other
// ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::exec {

/// Device memory that kernels pack messages into and unpack them from.
class MessageBuffer {
 public:
  /// @param label  of the memory, which the ledger counts as communication
  MessageBuffer(MemoryLedger& ledger, std::string label);

  /// Makes room for `bytes`. No message may be under way; the contents are lost.
  void grow(std::int64_t bytes);
  std::byte* memory() const { return memory_.data(); }  ///< device memory

  /// Returns the memory of one message.
  std::span<std::byte> bytes(std::int64_t offset, std::int64_t count) const {
    return {memory_.data() + offset, static_cast<std::size_t>(count)};
  }

 private:
  MemoryLedger& ledger_;
  std::string label_;
  Array<std::byte> memory_;
};

// --- Workspace of a server ---

/// A server's rows of tokens that live on other ranks, measured in head rows: one head of one row.
/// Gradients are zero whenever no backward pass adds to them: sending them away clears them.
template <typename Real>
class Workspace {
 public:
  using Sum = Accumulator<Real>;

  Workspace(const AttentionShape& shape, MemoryLedger& ledger) : shape_(shape), ledger_(ledger) {}

  /// Makes room for so many head rows of queries (Q, O, LSE, dO, delta, dQ) and keys (K, V, dK,
  /// dV), with `copies` of Q, K and V. If it has to grow, the contents are lost.
  void grow(std::int64_t query_rows, std::int64_t key_rows, std::int64_t copies);

  /// Selects the copy of Q, K and V that buffers() returns.
  void use_copy(std::int64_t copy);

  const model::AttentionBuffers<Real>& buffers() const { return buffers_; }

 private:
  template <typename T>
  T* allocate_rows(std::vector<Array<T>>& arrays, const char* label, plan::Tensor what,
                   std::int64_t copies);
  template <typename T>
  void release(std::vector<Array<T>>& arrays);

  AttentionShape shape_;
  MemoryLedger& ledger_;
  std::int64_t query_rows_ = 0;
  std::int64_t key_rows_ = 0;
  std::int64_t copies_ = 0;
  std::vector<Array<Real>> inputs_;
  std::vector<Array<Sum>> sums_;
  model::AttentionBuffers<Real> first_;  ///< with the first copy
  model::AttentionBuffers<Real> buffers_;
};

}  // namespace cadenza::exec
