// SPDX-License-Identifier: Apache-2.0
// Messages on their way: each takes its turn at the port where it leaves and at the port where it
// arrives, a rank's own inside a node, its network adapter between nodes. The network between the
// ports is never short of room, so a busy receiver does not hold up its sender's other messages.
#pragma once

#include <vector>

#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

class Network {
 public:
  Network(const Costs& costs, int ranks);

  /// Sends a message that both ends are ready for at `now`, which never decreases from call to
  /// call. @return when its last byte is there
  double transfer(Rank from, Rank to, std::int64_t bytes, double now);

 private:
  /// When a port is free again, by its number; ports appear as they are used.
  struct Ports {
    std::vector<double> out;
    std::vector<double> in;
  };
  static double& at(std::vector<double>& free, int port);

  const Costs& costs_;
  Ports ranks_;
  Ports adapters_;
};

}  // namespace cadenza::simulate
