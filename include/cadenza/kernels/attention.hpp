// SPDX-License-Identifier: Apache-2.0
// The interface of core attention kernels: plain rows and tasks in, outputs merged or gradients
// added.
//
// Notation: D head_dim, H query heads, KV key-value heads; query head h reads key-value head
// h / (H / KV). Rows are [heads, D] and contiguous, with the heads that their buffer holds; row r
// of a buffer is token tokens.begin + r of its document. K is already rotated (rotary embedding at
// its document position); Q is not: kernels rotate it by the position that a task's map gives for
// its row, once for every map of a call, so one Q serves every placement and every map.
//
// If documents are dealt to ranks in stripes, tokens count a rank's rows instead of the document's:
// they are any integers, which masks compare (Task::band) and Positions turn into positions.
//
// Real is the storage type of Q, K, V and dO; sums and merged values are Accumulator<Real>.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/attention_kernel.hpp"
#include "cadenza/base/sparse_index.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/base/task_rows.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::kernels {

/// Table of magnitude * cos and sin of position * frequency of pair d (see
/// attention::RotaryFrequencies) for d in [0, D/2): [positions, D/2] each, row-major. Pairs are (d,
/// d + D/2), Hugging Face's convention. Empty arrays: no rotation (attend's Q and K). Real is an
/// accumulator type: float or double.
template <typename Real>
struct RotaryTable {
  Array<Real> cos;
  Array<Real> sin;
  int half = 0;  ///< D / 2
  bool enabled() const { return cos.extent(0) > 0; }
};

/// Rows of queries of one document and their results. Device pointers to the row of tokens.begin;
/// null if the pass does not use them. h = heads.size(), or H if `heads` is empty.
template <typename Real>
struct QueryRows {
  using Sum = Accumulator<Real>;
  Range tokens;
  const Real* q = nullptr;  ///< [rows, h, D], not rotated
  Sum* out = nullptr;       ///< [rows, h, D]   forward: merged into
  Sum* lse = nullptr;  ///< [rows, h]      forward: merged into (-inf: nothing yet); backward: read
  const Real* dout = nullptr;  ///< [rows, h, D]   backward
  const Sum* delta = nullptr;  ///< [rows, h]      backward: rowsum(dO * O) of the merged O
  Sum* dq = nullptr;           ///< [rows, h, D]   backward: added to; gradient of the unrotated Q
  Range heads = {};            ///< query heads that the rows hold; empty: all H
  Positions positions = {};
  friend bool operator==(const QueryRows&, const QueryRows&) = default;
};

/// Rows of keys and values of one document. kv = heads.size(), or KV if `heads` is empty.
template <typename Real>
struct KeyRows {
  using Sum = Accumulator<Real>;
  Range tokens;
  const Real* k = nullptr;  ///< [rows, kv, D], rotated
  const Real* v = nullptr;  ///< [rows, kv, D]
  Sum* dk = nullptr;        ///< [rows, kv, D]   backward: added to; gradient of the rotated K
  Sum* dv = nullptr;        ///< [rows, kv, D]   backward: added to
  Range heads = {};         ///< key-value heads that the rows hold; empty: all KV
  Positions positions = {};
  friend bool operator==(const KeyRows&, const KeyRows&) = default;
};

/// A function that the calling thread calls repeatedly during a call, for example to advance
/// messages.
struct ProgressHook {
  void (*call)(void* context) = nullptr;  ///< null: nothing
  void* context = nullptr;
};

/// State that kernels keep of a list between calls, such as its tasks in device memory.
class KeptTasks {
 public:
  KeptTasks() = default;
  virtual ~KeptTasks() = default;
  KeptTasks(const KeptTasks&) = delete;
  KeptTasks& operator=(const KeptTasks&) = delete;
};

/// Tasks of one call. Tasks may share buffers: tasks with the same (query, head) merge, tasks with
/// the same keys add. Buffers in `queries` do not overlap each other, nor do those in `keys`.
template <typename Real>
struct TaskList {
  std::vector<QueryRows<Real>> queries;
  std::vector<KeyRows<Real>> keys;
  std::vector<TaskRows> tasks;
  AttentionKernel kernel = AttentionKernel::automatic;  ///< the kernel that computes them
  /// Called between tiles of work, at most every 0.5 ms, by the calling thread only; must not
  /// throw. Only the tuned host kernels call it.
  ProgressHook progress = {};
  /// Dynamic sparse attention: restricts a causal task to the pairs of its document's and head's
  /// pattern. Null: all pairs. Tasks of documents with a pattern keep the positions of the text.
  const SparseIndex* index = nullptr;
  /// [documents, heads] of `index`: a pass adds the number of pairs that it computes; null: not
  /// counted.
  std::int64_t* pairs = nullptr;
  /// State of the kernels, which check whether it still fits: a list may change in any way. Calls
  /// with one list must not overlap.
  mutable std::shared_ptr<KeptTasks> kept = {};
};

/// Returns the kernels for data stored as Real on this host, in the order in which `automatic`
/// prefers them. They depend on the processor's features and vendor, never on a measurement.
template <typename Real>
std::vector<AttentionKernel> available_attention_kernels();

/// Explains why no host (or no device) computes attention of this shape with the kernel on data
/// stored as Real; empty: some do.
template <typename Real>
std::string refused_everywhere(const AttentionShape& shape, AttentionKernel kernel, bool on_device);

/// Returns the kernel that computes calls of this shape: the named one, or the choice of
/// `automatic`.
/// @throws Error(usage) if this host or the head_dim does not allow it; the passes throw it too.
template <typename Real>
AttentionKernel attention_kernel(const AttentionShape& shape,
                                 AttentionKernel kernel = AttentionKernel::automatic);

/// Describes that kernel to users: an instruction set or "portable", with the reason if it is slow.
template <typename Real>
std::string describe_attention_kernel(const AttentionShape& shape,
                                      AttentionKernel kernel = AttentionKernel::automatic);

/// Forward: merges softmax(Q K^T / sqrt(D)) V of every task into out and lse (natural log):
/// with (O', L') the task's own result, L = log(exp(L) + exp(L')), O = (exp(L_old) O + exp(L') O')
/// / exp(L). A row whose tasks have no visible key keeps what it had.
template <typename Real>
void attention_forward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                       const TaskList<Real>& list);

/// Backward: adds every task's dQ, dK, dV, from the merged lse and delta. Deterministic: no
/// atomics.
template <typename Real>
void attention_backward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                        const TaskList<Real>& list);

}  // namespace cadenza::kernels
