// SPDX-License-Identifier: Apache-2.0
#include "simulate/perturbation.hpp"

#include <algorithm>
#include <cmath>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"

namespace cadenza::simulate {
namespace {

constexpr std::uint64_t kSpeedStream = Hasher().add("cluster.speed").value();
constexpr std::uint64_t kJitterStream = Hasher().add("cluster.jitter").value();
constexpr std::uint64_t kPauseStream = Hasher().add("cluster.pause").value();

bool is_of(config::FaultPhase phase, const program::Instruction& instruction) {
  switch (phase) {
    case config::FaultPhase::all:
      return true;
    case config::FaultPhase::forward:
      return program::phase_of(instruction) == Phase::forward;
    case config::FaultPhase::backward:
      return program::phase_of(instruction) == Phase::backward ||
             program::phase_of(instruction) == Phase::recompute;
    case config::FaultPhase::optimizer:
      return program::phase_of(instruction) == Phase::optimizer;
  }
  return false;
}

bool is_of(config::FaultWork work, program::Operation operation) {
  if (work == config::FaultWork::all) return true;
  const Category category = program::category(operation);
  return category == (work == config::FaultWork::attention ? Category::compute_attention
                                                           : Category::compute_dense);
}

bool concerns(const config::Fault& fault, Rank rank, const program::Instruction& instruction) {
  return fault.rank == rank && is_of(fault.phase, instruction) &&
         is_of(fault.work, instruction.operation);
}

}  // namespace

Perturbation::Perturbation(const config::Experiment& experiment, std::int64_t step)
    : seed_(experiment.seed ^ mix64(static_cast<std::uint64_t>(step))),
      jitter_(experiment.cluster.jitter) {
  const config::Cluster& cluster = experiment.cluster;
  if (!cluster.varies()) return;
  for (std::int64_t rank = 0; rank < experiment.ranks(); ++rank) {
    // A rank has the same speed in every step.
    rank_.push_back(
        std::exp(cluster.speed_spread *
                 random_normal(experiment.seed, kSpeedStream, static_cast<std::uint64_t>(rank))));
  }
  for (const auto& [rank, speed] : cluster.slow_ranks) {
    rank_.at(static_cast<std::size_t>(rank)) /= speed;
  }
  std::ranges::copy_if(cluster.faults, std::back_inserter(faults_), [&](const auto& fault) {
    return fault.steps.empty() || std::ranges::count(fault.steps, step) > 0;
  });
}

void Perturbation::place_pauses(const program::Program& program,
                                const std::function<bool(const program::Instruction&)>& computes) {
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    if (faults_[i].pause == 0) continue;
    std::vector<std::size_t> numbers;
    for (std::size_t n = 0; n < program.instructions.size(); ++n) {
      const program::Instruction& instruction = program.instructions[n];
      if (concerns(faults_[i], program.rank, instruction) && computes(instruction)) {
        numbers.push_back(n);
      }
    }
    if (numbers.empty()) continue;
    const auto at = random_bits(seed_, kPauseStream, i) % numbers.size();
    pauses_[{program.rank, numbers[at]}] += faults_[i].pause;
  }
}

double Perturbation::pause(Rank rank, std::size_t number) const {
  const auto pause = pauses_.find({rank, number});
  return pause == pauses_.end() ? 0.0 : pause->second;
}

/// Share of its time in which the rank has its core.
double Perturbation::core(Rank rank, const program::Instruction& instruction) const {
  double share = 1;
  for (const config::Fault& fault : faults_) {
    if (concerns(fault, rank, instruction)) share *= fault.core;
  }
  return share;
}

double Perturbation::seconds(Rank rank, std::size_t number, const program::Instruction& instruction,
                             double seconds) const {
  if (rank_.empty()) return seconds;
  double factor = rank_[at(rank)];
  if (jitter_ > 0) {
    const std::uint64_t stream = kJitterStream ^ mix64(static_cast<std::uint64_t>(rank));
    factor *= std::exp(jitter_ * random_normal(seed_, stream, number));
  }
  for (const config::Fault& fault : faults_) {
    if (concerns(fault, rank, instruction)) factor /= fault.speed;
  }
  return seconds * factor / core(rank, instruction) + pause(rank, number);
}

double Perturbation::still(Rank rank, std::size_t number, const program::Instruction& instruction,
                           double taken) const {
  const double paused = pause(rank, number);
  return paused + (taken - paused) * (1 - core(rank, instruction));
}

}  // namespace cadenza::simulate
