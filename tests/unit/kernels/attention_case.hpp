// SPDX-License-Identifier: Apache-2.0
// Random packed documents cut into random buffers and tasks, the naive float64 attention that they
// must equal, and the kernels' results for them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cadenza/kernels/attention.hpp"

namespace cadenza::testing {

using Vector = std::vector<double>;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// How kernels are told of a document's rows.
struct Storage {
  std::int64_t query_token = 0;     ///< token of row 0 on the query side
  std::int64_t key_token = 0;       ///< token of row 0 on the key side
  Positions positions;              ///< of the query rows; first -1: their tokens
  std::vector<Range> query_slices;  ///< heads held together, in buffers of their own; cover [0, H)
  std::vector<Range> key_slices;    ///< the same of key-value heads; cover [0, G)
};

/// Text position of a row of queries.
std::int64_t position_of(const Storage& storage, std::int64_t row);

/// One document's tensors: q, dout [length, H, D]; k (rotated), v [length, G, D].
struct DocumentData {
  std::int64_t length = 0;
  Vector q, k, v, dout;
  Storage storage;
};

/// Results per document, shaped like the inputs; lse [length, H].
struct DocumentResult {
  Vector out, lse, dq, dk, dv;
};

/// A piece of work: a task and the buffers that hold its rows. Ranges and the band are in rows
/// of the document, which its Storage turns into tokens.
struct Piece {
  Task task;
  Range query_buffer;
  Range key_buffer;
};

struct Case {
  AttentionShape shape;
  AttentionKernel kernel = AttentionKernel::automatic;
  double theta = 0;  ///< 0: no rotation
  std::vector<DocumentData> documents;
  std::vector<Piece> pieces;
};

struct CaseOptions {
  AttentionShape shape;
  double theta = 10000;
  std::vector<std::int64_t> lengths;
  bool cut = true;           ///< random buffers and tasks; otherwise one task per document
  double full_share = 0;     ///< share of tasks whose rule is full
  double dropped_share = 0;  ///< share of tasks left out, so that some rows see few keys or none
  bool striped = false;      ///< random diagonals, tokens and positions
  bool sliced = false;       ///< random slices of heads in buffers of their own
  double window_share = 0;   ///< share of tasks with a random band of keys
  double mapped_share = 0;   ///< share of tasks with a random map of positions
};

/// Unit-normal data that is exact in float, so that both precisions compute the same numbers.
Case make_case(const CaseOptions& options, std::mt19937_64& random);

/// Softmax over every (query, head, key) that some piece allows, and its gradients, by definition.
std::vector<DocumentResult> reference(const Case& of);

/// The positions that a case's rotation reads; no table without rotation.
template <typename Real>
kernels::RotaryTable<Real> rotary_table(const Case& of);

/// What computes a call; the seam's choice unless a test says otherwise.
template <typename Real>
struct Kernels {
  using Call =
      std::function<void(const AttentionShape&, const kernels::RotaryTable<Accumulator<Real>>&,
                         const kernels::TaskList<Real>&)>;
  Call forward = kernels::attention_forward<Real>;
  Call backward = kernels::attention_backward<Real>;
};

/// The kernels' results. Pieces are spread over `calls` forward and backward calls in turn.
template <typename Real>
std::vector<DocumentResult> computed(const Case& of, int calls = 1, const Kernels<Real>& by = {});

/// Rounds all tensors to bfloat16, so that it computes with the same numbers as its reference.
void round_to_bfloat16(Case& of);
/// make_case, rounded so.
Case rounded_case(const CaseOptions& options, std::mt19937_64& random);

/// Largest absolute difference; equal infinities differ by 0, NaN by infinity.
double max_difference(const Vector& a, const Vector& b);
/// |a - b| / |b|, or |a| where b is 0.
double relative_difference(const Vector& a, const Vector& b);

/// Expects out and lse within `forward` (absolute) and gradients within `backward` (relative L2).
void expect_close(const std::vector<DocumentResult>& got,
                  const std::vector<DocumentResult>& expected, double forward, double backward);

}  // namespace cadenza::testing
