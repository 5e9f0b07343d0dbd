// SPDX-License-Identifier: Apache-2.0
// The placements: one row of properties for each. Checks, the candidates of placement auto, the
// bound of a step and the homes of tokens read the rows, so that a new placement changes none of
// them; src/plan/placement.cpp makes its plan.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "cadenza/base/at.hpp"

namespace cadenza::config {

enum class PlacementKind {
  colocated,
  all_gather,
  ring,
  zigzag,
  striped,
  block_striped,
  ulysses,
  ulysses_ring,
  double_ring,
  dynamic,
  cad,
  automatic,
};

/// The ranks that may compute the attention of a rank's tokens, apart from dedicated servers;
/// `open`: not chosen yet (auto).
enum class Reach { rank, group, pool, open };

/// How a context group shares tokens. `given`: by attention.sharding. `zigzag`: in 2 x context
/// chunks, of which rank r has chunks r and 2 x context - 1 - r. `striped`, `block_striped`: dealt
/// to the ranks in turn, token by token or in blocks of attention.block tokens. `dynamic`: every
/// document has as many ranks of the group as it needs, in zigzag (Megatron's dynamic context
/// parallelism, FlexSP, ByteScale); `whole`: one rank or all of them (FlashCP). `ptrr`: blocks of
/// attention.block tokens, dealt by their work (PyTorch's processing-time-based round robin).
enum class Shares { given, contiguous, zigzag, striped, block_striped, dynamic, whole, ptrr };

/// How keys come to the queries of other ranks of a context group.
enum class KeyPath {
  planned,      ///< from their homes to the servers of the plan
  gather,       ///< all at once, by attention.gather
  ring,         ///< from rank to rank, or in rings of attention.inner_ring inside a ring of nodes
  heads,        ///< to the ranks that compute their heads: the group splits the heads
  head_groups,  ///< attention.head_parallel ranks split the heads; a ring over such groups
};

struct PlacementTraits {
  std::string_view word;
  Reach reach;
  Shares shares;
  KeyPath keys;
  bool candidate;  ///< placement auto tries it
};

/// Properties by enumerator.
inline constexpr auto kPlacements = std::to_array<PlacementTraits>({
    {"colocated", Reach::rank, Shares::contiguous, KeyPath::planned, true},
    {"all_gather", Reach::group, Shares::given, KeyPath::gather, true},
    {"ring", Reach::group, Shares::contiguous, KeyPath::ring, false},
    {"zigzag", Reach::group, Shares::zigzag, KeyPath::ring, true},
    {"striped", Reach::group, Shares::striped, KeyPath::ring, true},
    {"block_striped", Reach::group, Shares::block_striped, KeyPath::ring, false},
    {"ulysses", Reach::group, Shares::contiguous, KeyPath::heads, true},
    {"ulysses_ring", Reach::group, Shares::given, KeyPath::head_groups, true},
    {"double_ring", Reach::group, Shares::given, KeyPath::ring, true},
    {"dynamic", Reach::group, Shares::dynamic, KeyPath::ring, true},
    {"cad", Reach::pool, Shares::given, KeyPath::planned, true},
    {"auto", Reach::open, Shares::given, KeyPath::planned, false},
});
static_assert(kPlacements.size() == static_cast<std::size_t>(PlacementKind::automatic) + 1);

constexpr const PlacementTraits& traits_of(PlacementKind placement) {
  return kPlacements[at(placement)];
}

/// Whether attention is taken out of the model and may run on any rank of a pool.
constexpr bool disaggregates(PlacementKind placement) {
  return traits_of(placement).reach == Reach::pool;
}

constexpr bool deals_stripes(PlacementKind placement) {
  const Shares shares = traits_of(placement).shares;
  return shares == Shares::striped || shares == Shares::block_striped;
}

}  // namespace cadenza::config
