// SPDX-License-Identifier: Apache-2.0
// A plan carried out element by element with counts instead of numbers: slow, obvious, and
// independent of the validator.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan::test {

using Row = std::tuple<Rank, Tensor, int, std::int64_t, std::int64_t>;  // who holds what, where
using Keys = std::multiset<std::int64_t>;

inline bool at_home(const Workload& w, Rank rank, int document, std::int64_t token) {
  for (const Home& home : w.homes) {
    if (home.rank == rank && home.document == document && home.tokens.begin <= token &&
        token < home.tokens.end) {
      return true;
    }
  }
  return false;
}

/// What is wrong with carrying out a forward plan; empty where every query of workload.queries of
/// every head ends at home with each of its keys exactly once, and every row of Q, K and V that
/// comes to a rank comes once and is read there or sent on, but for keys where all are gathered.
/// Small documents only.
inline std::string carry_out(const Plan& plan) {
  const Workload& w = plan.workload;
  std::set<Row> inputs;
  std::set<Row> used;           // inputs that are read or sent on
  std::map<Row, Keys> outputs;  // keys that O holds on a rank
  std::map<Row, Keys> merged;
  const auto holds = [&](Rank rank, Tensor what, int document, std::int64_t t, std::int64_t h) {
    return at_home(w, rank, document, t) || inputs.contains({rank, what, document, t, h});
  };
  for (const Stage& stage : plan.stages) {
    for (const Move& m : stage.moves) {
      for (std::int64_t t = m.tokens.begin; t < m.tokens.end; ++t) {
        for (std::int64_t h = m.heads.begin; h < m.heads.end; ++h) {
          if (!is_result(m.what)) {
            if (!holds(m.from, m.what, m.document, t, h)) return "source lacks a row";
            used.insert({m.from, m.what, m.document, t, h});
            if (!inputs.insert({m.to, m.what, m.document, t, h}).second) return "a row comes twice";
          } else if (m.what == Tensor::o) {
            if (!at_home(w, m.to, m.document, t)) return "output goes astray";
            const auto keys = outputs.find({m.from, m.what, m.document, t, h});
            if (keys == outputs.end()) return "output is sent but not there";
            merged[{m.to, m.what, m.document, t, h}].merge(keys->second);
          }
        }
      }
    }
    for (const PlacedTask& p : stage.tasks) {
      const Task& task = p.task;
      for (std::int64_t h = task.heads.begin; h < task.heads.end; ++h) {
        const std::int64_t kv = h / w.shape.group();
        for (std::int64_t i = task.q.begin; i < task.q.end; ++i) {
          if (!holds(p.server, Tensor::q, task.document, i, h)) return "query is not there";
          used.insert({p.server, Tensor::q, task.document, i, h});
          Keys& keys = outputs[{p.server, Tensor::o, task.document, i, h}];
          for (std::int64_t j = task.k.begin; j < task.k.end; ++j) {
            if (!holds(p.server, Tensor::k, task.document, j, kv)) return "key is not there";
            if (!holds(p.server, Tensor::v, task.document, j, kv)) return "value is not there";
            if (!task.band.sees(i, j)) continue;
            keys.insert(j);
            for (const Tensor what : {Tensor::k, Tensor::v}) {
              used.insert({p.server, what, task.document, j, kv});
            }
          }
        }
      }
    }
  }
  if (plan.gathers_all) {
    std::erase_if(inputs, [](const Row& row) { return is_key_side(std::get<Tensor>(row)); });
  }
  if (!std::ranges::includes(used, inputs)) return "a row comes that nobody needs";
  for (const Home& home : w.homes) {
    const auto document = static_cast<std::size_t>(home.document);
    const std::int64_t length = w.lengths[document];
    for (std::int64_t i = home.tokens.begin; i < home.tokens.end; ++i) {
      const bool asked = w.queries_of(document).contains({i, i + 1});
      Keys expected;  // what the mask lets the query see in the text
      for (std::int64_t j = 0; asked && j < length; ++j) {
        const std::int64_t position = position_of(w.order, length, i);
        if (w.mask.sees(position, position_of(w.order, length, j))) expected.insert(j);
      }
      for (std::int64_t h = 0; h < w.shape.heads; ++h) {
        Keys keys = merged[{home.rank, Tensor::o, home.document, i, h}];
        keys.merge(outputs[{home.rank, Tensor::o, home.document, i, h}]);
        if (keys != expected) return "keys are missing, doubled or not to be seen";
      }
    }
  }
  return "";
}

}  // namespace cadenza::plan::test
