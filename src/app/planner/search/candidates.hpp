// SPDX-License-Identifier: Apache-2.0
// What `attention.placement: auto` chooses from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"

namespace cadenza::app {

/// What an experiment leaves to placement auto, decided.
struct Candidate {
  config::Parallel parallel;
  config::Attention attention;
  config::Recompute recompute = config::Recompute::none;
  std::int64_t microbatch = 0;  ///< tokens
  double longest = 1;           ///< batch.longest

  /// `given` laid out so, with nothing left open but the tolerance, which runs decide tick by tick.
  config::Experiment of(const config::Experiment& given) const;
};

/// Every layout of the experiment's trainers with every placement that keeps what it gives: degrees
/// that are not open stay, `data` takes the ranks that are left. Only those that the model and the
/// batch allow. Where the microbatch is open, with the least that they allow.
std::vector<Candidate> arrangements(const config::Experiment& given);

/// Where attention.servers is open: the same number of ranks, some of which are dedicated servers
/// and the others trainers. Servers are eighths of the ranks, in whole tensor groups. Trainers
/// serve as well or do not (attention.mixed).
std::vector<Candidate> served_arrangements(const config::Experiment& given);

/// Where the microbatch is open, the arrangement with the next larger one, of twice as many
/// sequences, that the model and the batch allow; none where there is none.
std::optional<Candidate> with_larger_microbatch(const config::Experiment& given,
                                                const Candidate& arrangement);

/// An arrangement with the ways that an experiment leaves open to save memory: recomputation, a
/// sharded optimizer. All have the same plans.
std::vector<Candidate> variants(const config::Experiment& given, const Candidate& arrangement);

/// Where batch.longest is open, the arrangement with less of it: ranks that get documents by their
/// cost hold fewer tokens, and are less balanced. None where no rank does.
std::optional<Candidate> with_fewer_rows(const config::Experiment& given,
                                         const Candidate& arrangement);

/// Whether config takes it.
bool makes_sense(const config::Experiment& experiment);

/// Whether attention is taken out of the model and placed: cad.
bool disaggregates(const Candidate& candidate);

/// "cad, ping-pong", "ulysses_ring 4".
std::string placement_text(const config::Attention& attention);
/// ... with batch.longest, where it is not as given: "dynamic, longest 1.1".
std::string placement_text(const Candidate& candidate);
/// What gives the candidate on a command line: "--set parallel.data=8", and so on.
std::vector<std::string> settings(const Candidate& candidate);
/// "data 6 x pipeline 1 x tensor 8 x context 1 + 16 servers, microbatch 128K".
std::string layout_text(const Candidate& candidate);

}  // namespace cadenza::app
