// SPDX-License-Identifier: Apache-2.0
// Checks the form of a plan, on which the rules rely: ranks, documents and ranges exist.
#include <algorithm>

#include "cadenza/base/at.hpp"
#include "plan/validate/rules.hpp"

namespace cadenza::plan {
namespace {

bool inside(Range range, std::int64_t size) {
  return range.begin >= 0 && !range.empty() && range.end <= size;
}

class Form {
 public:
  Form(const Plan& plan, const PassTensors& pass, Faults& faults)
      : workload_(plan.workload), pass_(pass), faults_(faults) {
    check_workload();
    if (!faults.empty()) return;
    for (const Stage& stage : plan.stages) {
      for (const Move& move : stage.moves) check(move);
      for (const PlacedTask& placed : stage.tasks) check(placed);
    }
    for (const Merge& merge : plan.merges) check(merge);
  }

 private:
  bool is_rank(Rank rank) const { return rank >= 0 && rank < workload_.ranks; }
  bool is_document(int document) const {
    return document >= 0 && static_cast<std::size_t>(document) < workload_.lengths.size();
  }
  std::int64_t length(int document) const { return workload_.lengths[at(document)]; }
  bool serves(Rank rank) const {
    return std::binary_search(workload_.servers.begin(), workload_.servers.end(), rank);
  }

  void check_workload() {
    const AttentionShape& shape = workload_.shape;
    if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
      faults_.add("presence", "{} heads cannot share {} key-value heads", shape.heads,
                  shape.kv_heads);
    }
    if (shape.element_bytes < 1 || shape.accumulator_bytes < shape.element_bytes) {
      faults_.add("totals", "elements of {} bytes cannot add up in {} bytes", shape.element_bytes,
                  shape.accumulator_bytes);
    }
    const TokenOrder& order = workload_.order;
    if (workload_.context < 1 || order.stripes < 1 || order.run < 1) {
      faults_.add("coverage", "context {}, {} stripes, runs of {} tokens: valid: 1 or more",
                  workload_.context, order.stripes, order.run);
    }
    check_queries();
    const std::vector<Rank>& pool = workload_.servers;
    if (!std::is_sorted(pool.begin(), pool.end()) ||
        std::adjacent_find(pool.begin(), pool.end()) != pool.end() ||
        !std::all_of(pool.begin(), pool.end(), [&](Rank rank) { return is_rank(rank); })) {
      faults_.add("presence", "the ranks of the pool do not ascend in [0, {})", workload_.ranks);
    }
    const std::vector<std::int64_t>& capacities = workload_.capacities;
    if (!capacities.empty() &&
        (std::ssize(capacities) != workload_.ranks || std::ranges::min(capacities) < 1)) {
      faults_.add("totals", "capacities of {} ranks; valid: of {} ranks, 1 or more each",
                  capacities.size(), workload_.ranks);
    }
    for (const Home& home : workload_.homes) {
      if (!is_rank(home.rank) || !is_document(home.document) ||
          !inside(home.tokens, length(home.document))) {
        faults_.add("presence", "no home: rank {} document {} tokens {}", home.rank, home.document,
                    describe(home.tokens));
      }
    }
    if (faults_.empty()) check_homes();
  }

  void check_queries() {
    const std::vector<Range>& queries = workload_.queries;
    if (!queries.empty() && queries.size() != workload_.lengths.size()) {
      faults_.add("coverage", "queries of {} documents, there are {}", queries.size(),
                  workload_.lengths.size());
      return;
    }
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const std::int64_t size = workload_.lengths[i];
      const bool part = queries[i].begin >= 0 && queries[i].begin <= queries[i].end &&
                        queries[i].end <= size && (queries[i].begin == 0 || queries[i].end == size);
      if (!part) {
        faults_.add("coverage", "queries {} of document {} begin or end inside its {} tokens",
                    describe(queries[i]), i, size);
      }
    }
  }

  void check_homes() {
    const Homes homes(workload_);
    for (std::size_t document = 0; document < workload_.lengths.size(); ++document) {
      std::int64_t end = 0;
      bool once = true;
      for (const Home& home : homes.of(static_cast<int>(document))) {
        once = once && home.tokens.begin == end;
        if (once) end = home.tokens.end;
      }
      if (!once || end != workload_.lengths[document]) {
        faults_.add("presence",
                    "the homes of document {} do not hold every token once: gap or overlap at "
                    "token {} of {}",
                    document, end, workload_.lengths[document]);
      }
    }
  }

  void check(const PlacedTask& placed) {
    const Task& task = placed.task;
    if (!is_document(task.document)) {
      faults_.add("coverage", "{}: no such document", describe(placed));
    } else if (!inside(task.q, length(task.document)) || !inside(task.k, length(task.document))) {
      faults_.add("coverage", "{}: not inside the document's {} tokens", describe(placed),
                  length(task.document));
    } else if (!inside(task.heads, workload_.shape.heads)) {
      faults_.add("coverage", "{}: not inside the {} heads", describe(placed),
                  workload_.shape.heads);
    }
    if (!is_rank(placed.server) || !serves(placed.server)) {
      faults_.add("presence", "{}: not a server of the pool", describe(placed));
    }
  }

  void check(const Move& move) {
    const AttentionShape& shape = workload_.shape;
    if (!pass_.reads(move.what) && !pass_.produces(move.what)) {
      faults_.add("presence", "{}: a {} plan does not carry it", describe(move), pass_.name);
    } else if (!is_rank(move.from) || !is_rank(move.to)) {
      faults_.add("presence", "{}: not ranks in [0,{})", describe(move), workload_.ranks);
    } else if (!is_document(move.document) || !inside(move.tokens, length(move.document))) {
      faults_.add("presence", "{}: not tokens of a document", describe(move));
    } else if (!inside(move.heads, is_key_side(move.what) ? shape.kv_heads : shape.heads)) {
      faults_.add("presence", "{}: no such heads", describe(move));
    } else if (move.from == move.to) {
      faults_.add("presence", "{}: sent to its own sender", describe(move));
    }
  }

  void check(const Merge& merge) {
    if (!is_rank(merge.owner) || !is_document(merge.document) ||
        !inside(merge.tokens, length(merge.document)) ||
        !inside(merge.heads, workload_.shape.heads)) {
      faults_.add("merging", "no outputs to merge: owner {} document {} tokens {} heads {}",
                  merge.owner, merge.document, describe(merge.tokens), describe(merge.heads));
    }
  }

  const Workload& workload_;
  const PassTensors& pass_;
  Faults& faults_;
};

}  // namespace

void check_form(const Plan& plan, const PassTensors& pass, Faults& faults) {
  Form(plan, pass, faults);
}

}  // namespace cadenza::plan
