// SPDX-License-Identifier: Apache-2.0
// A call's shapes, buffers, tasks and units in memory that the device can read, and the launch of
// units.
#pragma once

#include <Kokkos_Core.hpp>
#include <vector>

#include "../tasks/buffers.hpp"
#include "../tasks/kept_tasks.hpp"
#include "cadenza/kernels/attention.hpp"
#include "tile_product.hpp"

namespace cadenza::kernels::portable {

/// Rows of a tile. A GPU shares a tile among the threads of a team and has less scratch for it.
inline constexpr int kQueryTile = kDeviceIsCuda ? 32 : 64;
inline constexpr int kKeyTile = kDeviceIsCuda ? 32 : 64;
inline constexpr int kTeamSize = kDeviceIsCuda ? 128 : 1;
/// Heads of a group that share one load of keys; bounds scratch for large groups.
inline constexpr int kMaxGroupHeads = 8;

template <typename T>
using DeviceList = Kokkos::View<T*, DeviceMemory>;

/// The memory of a KeptArray. Copies go on the stream; data copied from pageable host memory has
/// been read when the call returns.
struct ListMemory {
  template <typename T>
  using Array = DeviceList<T>;
  template <typename T>
  Array<T> allocate(std::size_t count) const {
    return Array<T>(Kokkos::view_alloc("attention_tasks", Kokkos::WithoutInitializing), count);
  }
  template <typename T>
  void copy(const Array<T>& to, const std::vector<T>& items) const {
    using Host = Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    Kokkos::deep_copy(Device(), to, Host(items.data(), items.size()));
  }
};

template <typename Real>
struct Problem {
  int heads = 1;
  int kv_heads = 1;
  int group = 1;
  int dim = 1;
  int dim_pitch = 16;  ///< pitch of scratch matrices with one column per element of a head
  int half = 0;        ///< rotated pairs; 0: no rotation
  Real scale = 1;      ///< 1 / sqrt(dim)
  const Real* cos = nullptr;
  const Real* sin = nullptr;
  std::int64_t positions = 0;  ///< rows of both tables
  DeviceList<QueryRows<Real>> queries;
  DeviceList<KeyRows<Real>> keys;
  DeviceList<TaskRows> tasks;
  DeviceList<Unit> units;
  DeviceList<int> entries;
};

/// A list's arrays on the device, kept with it.
template <typename Real>
class KeptProblem : public KeptTasks {
 public:
  explicit KeptProblem(const ListMemory& memory) : memory_(memory) {}

  /// Begins a call: sets what all its passes share.
  void take(const AttentionShape& shape, const RotaryTable<Real>& rotary,
            const TaskList<Real>& list) {
    Problem<Real> problem;
    problem.heads = shape.heads;
    problem.kv_heads = shape.kv_heads;
    problem.group = shape.group();
    problem.dim = shape.head_dim;
    problem.dim_pitch = pitch(shape.head_dim);
    problem.scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    if (rotary.enabled()) {
      problem.half = rotary.half;
      problem.cos = rotary.cos.data();
      problem.sin = rotary.sin.data();
      problem.positions =
          static_cast<std::int64_t>(rotary.cos.extent(0)) / std::max(1, rotary.half);
    }
    if (!key_.is_that_of(shape, problem.positions, list)) units_.clear();
    queries_.set(memory_, list.queries);
    keys_.set(memory_, list.keys);
    tasks_.set(memory_, list.tasks);
    problem.queries = queries_.array();
    problem.keys = keys_.array();
    problem.tasks = tasks_.array();
    problem_ = problem;
  }

  /// Returns the problem of one pass.
  Problem<Real> problem(const AttentionShape& shape, const TaskList<Real>& list,
                        const UnitShape& unit_shape) {
    const auto& [units, entries] = units_.of(memory_, shape, list, unit_shape);
    problem_.units = units.array();
    problem_.entries = entries.array();
    return problem_;
  }

 private:
  template <typename T>
  using List = KeptArray<T, ListMemory>;

  ListMemory memory_;
  ListKey<Real> key_;
  Problem<Real> problem_;
  List<QueryRows<Real>> queries_;
  List<KeyRows<Real>> keys_;
  List<TaskRows> tasks_;
  KeptUnits<ListMemory> units_;
};

/// Returns the arrays of a call's list.
template <typename Real>
KeptProblem<Real>& kept_problem(const AttentionShape& shape, const RotaryTable<Real>& rotary,
                                const TaskList<Real>& list) {
  auto& kept = kept_of<KeptProblem<Real>>(list, ListMemory());
  kept.take(shape, rotary, list);
  return kept;
}

/// Offsets into a team's scratch memory, in elements; every matrix begins on a cache line.
class ScratchPlan {
 public:
  int matrix(int rows, int row_pitch) { return vector(round_up(rows, kBlockRows) * row_pitch); }
  int vector(int count) {
    const int offset = size_;
    size_ += round_up(count, 32);
    return offset;
  }
  int size() const { return size_; }

 private:
  int size_ = 0;
};

using TeamPolicy = Kokkos::TeamPolicy<Device, Kokkos::Schedule<Kokkos::Dynamic>>;
using Member = TeamPolicy::member_type;
inline constexpr std::size_t kCacheLine = 64;

/// Runs pass(team) for every unit. A Pass has `problem`, `scratch_size` (elements) and
/// `scratch_level`.
template <typename Real, typename Pass>
void run_units(const char* name, Pass pass) {
  const int units = static_cast<int>(pass.problem.units.extent(0));
  if (units == 0) return;
  const int bytes =
      pass.scratch_size * static_cast<int>(sizeof(Real)) + static_cast<int>(kCacheLine);
  pass.scratch_level = bytes <= TeamPolicy::scratch_size_max(0) ? 0 : 1;
  TeamPolicy policy(units, kTeamSize);
  policy.set_chunk_size(1);
  policy.set_scratch_size(pass.scratch_level, Kokkos::PerTeam(bytes));
  launch(name, policy, pass);
}

template <typename Real>
KOKKOS_INLINE_FUNCTION Real* scratch_of(const Member& team, int level, int size) {
  return static_cast<Real*>(team.team_scratch(level).get_shmem_aligned(
      static_cast<std::size_t>(size) * sizeof(Real), kCacheLine));
}

}  // namespace cadenza::kernels::portable
