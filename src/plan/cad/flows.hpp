// SPDX-License-Identifier: Apache-2.0
// Bytes through every rank, of inputs and of results, while documents are cut anew.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "plan/cad/residency.hpp"

namespace cadenza::plan {

/// Rows that travel between a document's home and a server.
struct Flow {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

class Flows {
 public:
  Flows(const Residency& residency, int ranks)
      : residency_(residency), through_(static_cast<std::size_t>(ranks)) {}

  /// Adds (or, with sign -1, takes away) the bytes of a flow.
  void add(Rank home, Rank server, const Flow& flow, std::int64_t sign = 1) {
    const std::int64_t in = sign * inputs(flow);
    const std::int64_t out = sign * flow.queries * residency_.result_bytes();
    at(home).inputs_sent += in;
    at(server).inputs_received += in;
    at(server).results_sent += out;
    at(home).results_received += out;
  }

  std::int64_t bytes(const Flow& flow) const {
    return inputs(flow) + flow.queries * residency_.result_bytes();
  }

  /// What goes through the busiest rank now is what no rank may exceed from now on.
  void set_limits() {
    for (const Through& rank : through_) {
      inputs_limit_ = std::max({inputs_limit_, rank.inputs_sent, rank.inputs_received});
      results_limit_ = std::max({results_limit_, rank.results_sent, rank.results_received});
    }
  }
  bool within_limits(Rank rank) const {
    const Through& through = through_[static_cast<std::size_t>(rank)];
    return std::max(through.inputs_sent, through.inputs_received) <= inputs_limit_ &&
           std::max(through.results_sent, through.results_received) <= results_limit_;
  }

 private:
  struct Through {
    std::int64_t inputs_sent = 0, inputs_received = 0;
    std::int64_t results_sent = 0, results_received = 0;
  };
  Through& at(Rank rank) { return through_[static_cast<std::size_t>(rank)]; }
  std::int64_t inputs(const Flow& flow) const {
    return flow.queries * (residency_.query_bytes() - residency_.result_bytes()) +
           flow.keys * residency_.key_bytes();
  }

  const Residency& residency_;
  std::vector<Through> through_;
  std::int64_t inputs_limit_ = 0;
  std::int64_t results_limit_ = 0;
};

}  // namespace cadenza::plan
