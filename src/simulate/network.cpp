// SPDX-License-Identifier: Apache-2.0
#include "simulate/network.hpp"

#include <algorithm>

namespace cadenza::simulate {

Network::Network(const Costs& costs, int ranks) : costs_(costs) {
  ranks_.out.resize(static_cast<std::size_t>(ranks), 0.0);
  ranks_.in.resize(static_cast<std::size_t>(ranks), 0.0);
}

double& Network::at(std::vector<double>& free, int port) {
  const auto index = static_cast<std::size_t>(port);
  if (index >= free.size()) free.resize(index + 1, 0.0);
  return free[index];
}

double Network::transfer(Rank from, Rank to, std::int64_t bytes, double now) {
  const cost::Way way = costs_.way(from, to);
  Ports& ports = way.between_nodes ? adapters_ : ranks_;
  double& out = at(ports.out, way.between_nodes ? costs_.adapter_of(from) : from);
  double& in = at(ports.in, way.between_nodes ? costs_.adapter_of(to) : to);
  const double seconds = static_cast<double>(bytes) / way.bytes_per_second;
  const double leaves = std::max(now, out);
  out = leaves + seconds;
  in = std::max(leaves + way.latency_seconds, in) + seconds;
  return in;
}

}  // namespace cadenza::simulate
