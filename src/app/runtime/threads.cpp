// SPDX-License-Identifier: Apache-2.0
// The arithmetic of threads and cores; no system calls.
#include "threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

constexpr std::size_t kListedSlices = 8;

/// Of ascending cores.
bool overlap(const std::vector<int>& a, const std::vector<int>& b) {
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (*i == *j) return true;
    *i < *j ? ++i : ++j;
  }
  return false;
}

int size(const std::vector<int>& cores) {
  return static_cast<int>(cores.size());
}

int thread_count(const ThreadFacts& mine, std::span<const ThreadFacts> ranks) {
  if (mine.wanted > 0) return mine.wanted;
  const auto sharing =
      std::ranges::count_if(ranks, [&](const auto& r) { return overlap(r.cores, mine.cores); });
  int threads = size(mine.cores) / std::max(1, static_cast<int>(sharing));
  if (mine.granted > 0) threads = std::min(threads, mine.granted);
  return std::max(1, threads);
}

/// Whether the ranks that share cores with `mine` may each have a slice of them.
bool may_slice(const ThreadFacts& mine, std::span<const ThreadFacts> ranks, int threads) {
  const bool alike = std::ranges::all_of(ranks, [&](const ThreadFacts& r) {
    return !overlap(r.cores, mine.cores) || (r.cores == mine.cores && !r.user_binds);
  });
  return alike && !mine.user_binds && threads <= size(mine.cores) && 2 * threads > size(mine.cores);
}

std::string counted(std::size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// Every rank's cores in rank order, once where all have the same.
std::string core_lists(const std::vector<ThreadPlace>& places) {
  std::vector<std::string> lists;
  for (const ThreadPlace& place : places) lists.push_back(number_list(place.cores));
  lists.erase(std::unique(lists.begin(), lists.end()), lists.end());
  if (lists.size() > kListedSlices) lists = {lists[0], lists[1], "...", lists.back()};
  return fmt::format("{}", fmt::join(lists, " | "));
}

std::vector<int> union_of_cores(std::span<const ThreadFacts> ranks) {
  std::vector<int> all;
  for (const ThreadFacts& rank : ranks) all.insert(all.end(), rank.cores.begin(), rank.cores.end());
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::string binding(std::span<const ThreadFacts> ranks, const std::vector<ThreadPlace>& places) {
  if (std::ranges::any_of(ranks, &ThreadFacts::user_binds)) return "binding as OMP_PROC_BIND says";
  return std::ranges::all_of(places, &ThreadPlace::pinned) ? "pinned" : "not pinned";
}

/// "; oversubscribed: ..." where ranks that run on the same cores have more threads together.
std::string oversubscription(std::span<const ThreadFacts> ranks,
                             const std::vector<ThreadPlace>& places) {
  for (const ThreadFacts& mine : ranks) {
    int threads = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (std::ranges::includes(mine.cores, ranks[i].cores)) threads += places[i].threads;
    }
    if (threads > size(mine.cores)) {
      return fmt::format("; oversubscribed: {} threads on {}, so times will be longer", threads,
                         counted(mine.cores.size(), "core"));
    }
  }
  return "";
}

/// What about the threads of a host costs time; empty: nothing.
std::string warning(std::span<const ThreadFacts> ranks, const std::vector<ThreadPlace>& places) {
  const std::string crowded = oversubscription(ranks, places);
  const int idle = ranks.front().host_cores - size(union_of_cores(ranks));
  if (idle <= 0 || (crowded.empty() && ranks.front().wanted > 0)) return crowded;
  return fmt::format("{}; mpirun's binding leaves {} idle, use --bind-to none", crowded,
                     counted(static_cast<std::size_t>(idle), "core"));
}

std::string describe_host(std::span<const ThreadFacts> ranks) {
  const std::vector<ThreadPlace> places = place_threads(ranks);
  std::vector<int> threads;
  for (const ThreadPlace& place : places) threads.push_back(place.threads);
  const bool equal = std::ranges::count(threads, threads[0]) == std::ssize(threads);
  const std::string each = equal ? counted(static_cast<std::size_t>(threads[0]), "thread")
                                 : fmt::format("{} threads", fmt::join(threads, " | "));
  return fmt::format("{} x {}, cores {} ({}){}", counted(places.size(), "rank"), each,
                     core_lists(places), binding(ranks, places), warning(ranks, places));
}

}  // namespace

std::vector<ThreadPlace> place_threads(std::span<const ThreadFacts> ranks) {
  std::vector<ThreadPlace> places;
  std::map<std::vector<int>, int> in_all;  // threads of the ranks with these cores
  for (const ThreadFacts& rank : ranks) {
    places.push_back({thread_count(rank, ranks), rank.cores, false});
    in_all[rank.cores] += places.back().threads;
  }
  std::map<std::vector<int>, int> taken;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::vector<int>& cores = ranks[i].cores;
    if (!may_slice(ranks[i], ranks, in_all[cores])) continue;
    const auto first = cores.begin() + taken[cores];
    places[i].cores.assign(first, first + places[i].threads);
    places[i].pinned = true;
    taken[cores] += places[i].threads;
  }
  return places;
}

std::vector<std::string> describe_threads(std::span<const ThreadFacts> ranks) {
  std::map<std::string, std::vector<ThreadFacts>> hosts;
  for (const ThreadFacts& rank : ranks) hosts[rank.host].push_back(rank);
  std::map<std::string, std::vector<std::string>> situations;  // what is said -> of which hosts
  for (const auto& [host, here] : hosts) situations[describe_host(here)].push_back(host);
  std::vector<std::string> lines;
  for (const auto& [text, where] : situations) {
    lines.push_back(hosts.size() == 1   ? text
                    : where.size() == 1 ? where.front() + ": " + text
                                        : fmt::format("{} hosts: {}", where.size(), text));
  }
  return lines;
}

}  // namespace cadenza::app
