// SPDX-License-Identifier: Apache-2.0
// Placement `cad`: core attention disaggregation (DistCA, arXiv 2510.18121, section 4.2 and
// appendix B), with the tolerance held on both sides, resident keys not charged again, and tasks
// cut along their keys.
#include <fmt/format.h>

#include <utility>

#include "plan/cad/blocks.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/plan/predict.hpp"
#include "plan/cad/keys.hpp"
#include "plan/cad/pairs.hpp"
#include "plan/assemble.hpp"

namespace cadenza::plan {
namespace {

void check(const Workload& workload, const config::Attention& attention) {
  if (workload.servers.empty()) {
    fail(ExitCode::usage, "placement: found no attention server; valid: at least 1");
  }
  if (attention.block < 1) {
    fail(ExitCode::usage, "attention.block: found {}; valid: 1 or more tokens", attention.block);
  }
  if (!attention.tolerance || !(*attention.tolerance >= 0)) {
    const std::string found =
        attention.tolerance ? fmt::format("{}", *attention.tolerance) : "auto, undecided";
    fail(ExitCode::usage, "attention.tolerance: found {}; valid: 0 or more", found);
  }
}

}  // namespace

Plan cad(const Workload& workload, const config::Attention& attention, const cost::Pool& pool) {
  check(workload, attention);
  const Homes homes(workload);
  Loads loads(workload, *attention.tolerance);
  Residency residency(workload, homes);
  const std::vector<DocumentShard> shards = make_shards(workload, homes, attention.block);
  std::vector<Assignment> assignments =
      balance_pairs(workload, shards, attention, loads, residency);
  coalesce(workload, assignments);
  // DistCA's code knows pairs alone.
  if (attention.bound == config::Bound::two_sided) {
    refine_blocks(workload, attention.block, loads, residency, assignments);
  }
  if (!attention.split_keys) return assemble(workload, homes, std::move(assignments));
  coalesce(workload, assignments);
  tile_documents(workload, homes, attention.block, loads, residency, assignments);
  std::vector<Assignment> cut = assignments;
  const bool faster = cut_keys(workload, attention.block, loads, cut);
  Plan plan = assemble(workload, homes, std::move(assignments));
  if (!faster) return plan;
  Plan other = assemble(workload, homes, std::move(cut));
  const bool falls = predict(other, pool).predicted_seconds < predict(plan, pool).predicted_seconds;
  return falls ? other : plan;
}

}  // namespace cadenza::plan
