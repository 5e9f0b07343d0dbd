// SPDX-License-Identifier: Apache-2.0
// Messages under way: each queues at the port that it leaves and at the port where it arrives: a
// rank's own port inside a node, its network adapter between nodes. The network between the ports
// is never congested, so a busy receiver does not delay its sender's other messages.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/program/traffic.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

class Network {
 public:
  Network(const Costs& costs, int ranks);

  /// Sends a message that both ends have posted at `now`, which never decreases from call to call.
  /// @return arrival of its last byte
  double transfer(Rank from, Rank to, std::int64_t bytes, double now);

 private:
  /// Times at which ports become free, by port; ports appear when first used.
  struct Ports {
    std::vector<double> out;
    std::vector<double> in;
  };
  static double& at(std::vector<double>& free, int port);

  const Costs& costs_;
  Ports ranks_;
  Ports adapters_;
};

// --- Messages of one stage ---
// The messages of one stage of one layer in one pass among all ranks of a pool: which ends are
// posted, and when the messages arrive.

/// State of a message. It leaves when sender and receiver have posted it: large messages of MPI and
/// NCCL wait for their receiver.
struct Message {
  bool sender_posted = false;
  bool receiver_posted = false;
  bool sender_waits = false;
  bool receiver_waits = false;
  double ready = 0;  ///< when both ends had posted it
  double there = 0;  ///< arrival of its last byte
  bool under_way() const { return sender_posted && receiver_posted; }
};

/// Identifies a stage, or an index round, of the attention of a layer.
struct StageKey {
  int pool = 0;
  int tick = 0;
  int plan = 0;
  int layer = 0;
  int stage = 0;
  program::Pass pass = program::Pass::forward;
  bool recompute = false;
  bool index = false;  ///< `stage` is an index round
  friend auto operator<=>(const StageKey&, const StageKey&) = default;
};

class StageMessages {
 public:
  StageMessages(const program::Traffic& traffic, const StageKey& key)
      : traffic_(&traffic),
        key_(key),
        messages_(traffic.messages(key.stage).size()),
        open_ends_(2 * messages_.size()) {}

  const StageKey& key() const { return key_; }
  std::size_t messages() const { return messages_.size(); }
  const program::PlannedMessage& planned(std::size_t number) const {
    return traffic_->messages(key_.stage)[number];
  }
  Message& message(std::size_t number) { return messages_[number]; }
  const Message& message(std::size_t number) const { return messages_[number]; }
  program::Part of(Rank rank) const { return traffic_->of(rank, key_.stage); }

  /// Notes that a rank has seen the end of a message. @return whether that was the last open end
  bool close_end() { return --open_ends_ == 0; }

 private:
  const program::Traffic* traffic_;
  StageKey key_;
  std::vector<Message> messages_;
  std::size_t open_ends_;
};

}  // namespace cadenza::simulate
