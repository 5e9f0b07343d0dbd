// SPDX-License-Identifier: Apache-2.0
// The seam of core attention kernels: plain rows and tasks in, outputs merged or gradients added.
//
// Notation: D head_dim, H query heads, G key-value heads; query head h reads key-value head h / (H
// / G). Rows are [heads, D] and contiguous, of the heads that their buffer holds; a buffer's row r
// is token tokens.begin + r of its document. K is rotated already (rotary embedding at its document
// position); Q is not: kernels rotate it by the position that a task's map gives for its row, once
// for every map of a call, so that one Q serves every placement and every map.
//
// Where documents are dealt to ranks in stripes, tokens count a rank's rows and not the document's:
// any integers, which masks compare (Task::band) and which Positions turn into positions.
//
// Real is what Q, K, V and dO are stored as; what merges or adds up is kept in Accumulator<Real>.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/attention_kernel.hpp"
#include "cadenza/base/sparse_index.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::kernels {

/// cos and sin of position * theta^(-2d/D) for d in [0, D/2): [positions, D/2] each, row-major.
/// Pairs are (d, d + D/2), Hugging Face's convention. Empty arrays: no rotation (attend's Q and K).
/// Real is an accumulator type: float or double.
template <typename Real>
struct RotaryTable {
  Array<Real> cos;
  Array<Real> sin;
  int half = 0;  ///< D / 2
  bool enabled() const { return cos.extent(0) > 0; }
};

struct AttentionShape {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 1;
  AttentionKernel kernel = AttentionKernel::automatic;  ///< what is to compute them, on a host
  int group() const { return heads / kv_heads; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// Text positions of the rows of a buffer: row r is at first + r * step. Read by the rotation,
/// through the map of the task (Task::q_positions), and by sparse patterns; masks compare tokens.
struct Positions {
  std::int64_t first = -1;  ///< of the row of tokens.begin; -1: tokens.begin itself
  std::int64_t step = 1;    ///< at least 1
  /// Keys alone: wherever they come to a multiple of `run`, `gap` positions are left out. 0: none.
  std::int64_t run = 0;
  std::int64_t gap = 0;
  friend bool operator==(const Positions&, const Positions&) = default;
};

/// Rows of queries of one document and what belongs to them. Device pointers to the row of
/// tokens.begin; null where the pass does not use them. h = heads.size(), or H where it is empty.
template <typename Real>
struct QueryRows {
  using Sum = Accumulator<Real>;
  Range tokens;
  const Real* q = nullptr;  ///< [rows, h, D], not rotated
  Sum* out = nullptr;       ///< [rows, h, D]   forward: merged into
  Sum* lse = nullptr;  ///< [rows, h]      forward: merged into (-inf: nothing yet); backward: read
  const Real* dout = nullptr;  ///< [rows, h, D]   backward
  const Sum* delta = nullptr;  ///< [rows, h]      backward: rowsum(dO * O) of the merged O
  Sum* dq = nullptr;           ///< [rows, h, D]   backward: added to; gradient of the un-rotated Q
  Range heads = {};            ///< query heads that the rows hold; empty: all H
  Positions positions = {};
  friend bool operator==(const QueryRows&, const QueryRows&) = default;
};

/// Rows of keys and values of one document. g = heads.size(), or G where it is empty.
template <typename Real>
struct KeyRows {
  using Sum = Accumulator<Real>;
  Range tokens;
  const Real* k = nullptr;  ///< [rows, g, D], rotated
  const Real* v = nullptr;  ///< [rows, g, D]
  Sum* dk = nullptr;        ///< [rows, g, D]   backward: added to; gradient of the rotated K
  Sum* dv = nullptr;        ///< [rows, g, D]   backward: added to
  Range heads = {};         ///< key-value heads that the rows hold; empty: all G
  Positions positions = {};
  friend bool operator==(const KeyRows&, const KeyRows&) = default;
};

/// A task and the buffers it reads: queries[query_rows] contains task.q, keys[key_rows] contains
/// task.k.
struct TaskRows {
  Task task;
  int query_rows = 0;
  int key_rows = 0;
  friend bool operator==(const TaskRows&, const TaskRows&) = default;
};

/// What the calling thread does now and then while a call computes, such as moving messages on.
struct ProgressHook {
  void (*call)(void* context) = nullptr;  ///< null: nothing
  void* context = nullptr;
};

/// What kernels keep of a list from one call to the next, such as its tasks in device memory.
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
  /// Called between tiles of work, at most every 0.5 ms, by the thread that made the call and by no
  /// other; may not throw. The tuned host kernels do; the portable ones and a device compute
  /// without.
  ProgressHook progress = {};
  /// Dynamic sparse attention: of the pairs of a causal task, those of its document's and head's
  /// pattern. Null: all of them. Tasks of documents with a pattern keep the text's own positions.
  const SparseIndex* index = nullptr;
  /// [documents, heads] of `index`: what a pass computes adds its pairs here; null: nobody asks.
  std::int64_t* pairs = nullptr;
  /// Of the kernels, which also see whether it still fits: a list may change in any way. Calls with
  /// one list come one after another.
  mutable std::shared_ptr<KeptTasks> kept = {};
};

/// Kernels for data stored as Real on this host, the one that `automatic` prefers first. They
/// depend on the processor's features and vendor, never on a measurement.
template <typename Real>
std::vector<AttentionKernel> available_attention_kernels();

/// Why no host, or no device, computes attention of this shape on data stored as Real; empty: some
/// do.
template <typename Real>
std::string refused_everywhere(const AttentionShape& shape, bool on_device);

/// What computes calls of this shape: shape.kernel, or what `automatic` stands for.
/// @throws Error(usage) where this host or the head_dim does not allow it; so do the passes.
template <typename Real>
AttentionKernel attention_kernel(const AttentionShape& shape);

/// The same for people: an instruction set or "portable", with the reason where that is slow.
template <typename Real>
std::string describe_attention_kernel(const AttentionShape& shape);

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
