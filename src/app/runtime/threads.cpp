// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/threads.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "cadenza/base/hash.hpp"
#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) found.push_back(part);
  return found;
}

bool names_cpu(const std::string& controllers) {
  const std::vector<std::string> names = parts(controllers, ',');
  return std::ranges::find(names, "cpu") != names.end();
}

/// A mounted hierarchy of control groups.
struct Mount {
  std::string root;   ///< the group shown at `point`
  std::string point;  ///< folder
  bool v2 = false;
};

/// Parses a line of /proc/self/mountinfo; nothing if it is no hierarchy that limits processor time.
std::optional<Mount> mount_of(const std::string& line) {
  std::istringstream stream(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  const auto dash = std::ranges::find(words, "-");  // any number of options precede it
  if (dash - words.begin() < 6 || words.end() - dash < 4) return std::nullopt;
  const std::string& type = dash[1];
  const bool v2 = type == "cgroup2";
  if (!v2 && (type != "cgroup" || !names_cpu(dash[3]))) return std::nullopt;
  return Mount{words[3], words[4], v2};
}

/// Returns this process's group in a hierarchy, from the lines of /proc/self/cgroup; empty: none.
std::string group_in(const Mount& mount, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (mount.v2 ? controllers.empty() : names_cpu(controllers)) return line.substr(second + 1);
  }
  return "";
}

std::optional<double> number_in(const fs::path& file) {
  std::ifstream stream(file);
  double value = 0;
  return stream >> value ? std::optional(value) : std::nullopt;  // "max" means no limit
}

/// Returns the limit in the files of one group; 0: none.
double limit_of(const fs::path& group, bool v2) {
  double quota = 0;
  double period = 0;
  if (v2) {
    std::ifstream stream(group / "cpu.max");
    if (!(stream >> quota >> period)) return 0;
  } else {
    quota = number_in(group / "cpu.cfs_quota_us").value_or(0);  // -1: none
    period = number_in(group / "cpu.cfs_period_us").value_or(0);
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

std::uint64_t identity(const fs::path& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return 0;
  return Hasher().add(std::uint64_t{status.st_dev}).add(std::uint64_t{status.st_ino}).value();
}

/// Returns the tightest limit of the group and its ancestors that `mount` shows.
CpuQuota tightest(const std::string& root, const Mount& mount, const std::string& group) {
  // Seen from inside a container, a group may lie outside the mounted part.
  const std::string above = mount.root == "/" ? "" : mount.root;
  const bool inside = group.starts_with(above + "/") && !group.starts_with("/..");
  const fs::path point = root + mount.point;
  CpuQuota found;
  fs::path folder = inside ? fs::path(root + mount.point + group.substr(above.size())) : point;
  if (!folder.has_filename()) folder = folder.parent_path();
  for (;; folder = folder.parent_path()) {
    const double cores = limit_of(folder, mount.v2);
    if (cores > 0 && (found.cores == 0 || cores < found.cores)) found = {cores, identity(folder)};
    if (folder.native().size() <= point.native().size()) return found;
  }
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream stream(path);
  return parts({std::istreambuf_iterator<char>(stream), {}}, '\n');
}

}  // namespace

CpuQuota cpu_quota(const std::string& root) {
  const std::vector<std::string> groups = lines_of(root + "/proc/self/cgroup");
  CpuQuota found;
  for (const std::string& line : lines_of(root + "/proc/self/mountinfo")) {
    const std::optional<Mount> mount = mount_of(line);
    if (!mount) continue;
    const CpuQuota here = tightest(root, *mount, group_in(*mount, groups));
    if (here.cores > 0 && (found.cores == 0 || here.cores < found.cores)) found = here;
  }
  return found;
}

// --- Arithmetic of threads and cores, without system calls ---

namespace {

constexpr std::size_t kListedSlices = 8;

/// Whether two ascending lists share a core.
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

bool share_quota(const ThreadFacts& a, const ThreadFacts& b) {
  return a.quota.cores > 0 && b.quota.cores > 0 && a.quota.group == b.quota.group;
}

/// Returns the number of threads before OpenMP's limit.
int asked_threads(const ThreadFacts& mine, std::span<const ThreadFacts> ranks) {
  if (mine.wanted > 0) return mine.wanted;
  const auto sharing =
      std::ranges::count_if(ranks, [&](const auto& r) { return overlap(r.cores, mine.cores); });
  int threads = size(mine.cores) / std::max(1, static_cast<int>(sharing));
  if (mine.granted > 0) threads = std::min(threads, mine.granted);
  if (mine.quota.cores > 0) {
    const auto within =
        std::ranges::count_if(ranks, [&](const auto& r) { return share_quota(r, mine); });
    threads = std::min(threads, static_cast<int>(mine.quota.cores / static_cast<double>(within)));
  }
  return std::max(1, threads);
}

/// Whether each rank that shares cores with `mine` may have a slice of them.
bool may_slice(const ThreadFacts& mine, std::span<const ThreadFacts> ranks, int threads) {
  const bool alike = std::ranges::all_of(ranks, [&](const ThreadFacts& r) {
    return !overlap(r.cores, mine.cores) || (r.cores == mine.cores && r.binders.empty());
  });
  return alike && mine.binders.empty() && threads <= size(mine.cores) &&
         2 * threads > size(mine.cores);
}

/// Lists every rank's cores in rank order, or once if all are the same.
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

/// Returns the variables that bind ranks' threads, if any.
std::vector<std::string> binders_of(std::span<const ThreadFacts> ranks) {
  const auto bound = std::ranges::find_if(ranks, [](const auto& r) { return !r.binders.empty(); });
  return bound == ranks.end() ? std::vector<std::string>{} : bound->binders;
}

std::string binding(std::span<const ThreadFacts> ranks, const std::vector<ThreadPlace>& places) {
  const std::vector<std::string> binders = binders_of(ranks);
  if (!binders.empty()) {
    return fmt::format("binding as {} say{}", fmt::join(binders, " and "),
                       binders.size() == 1 ? "s" : "");
  }
  return std::ranges::all_of(places, &ThreadPlace::pinned) ? "pinned" : "not pinned";
}

/// Returns the cores of all places that overlap `cores`, directly or through others.
std::vector<int> connected(std::vector<int> cores, const std::vector<ThreadPlace>& places) {
  for (bool grows = true; grows;) {
    const std::size_t before = cores.size();
    for (const ThreadPlace& place : places) {
      if (!overlap(place.cores, cores)) continue;
      std::vector<int> joined;
      std::ranges::set_union(place.cores, cores, std::back_inserter(joined));
      cores = std::move(joined);
    }
    grows = cores.size() > before;
  }
  return cores;
}

int threads_within(const std::vector<int>& cores, const std::vector<ThreadPlace>& places) {
  int threads = 0;
  for (const ThreadPlace& place : places) {
    if (std::ranges::includes(cores, place.cores)) threads += place.threads;
  }
  return threads;
}

std::string quota_of(const ThreadFacts& rank) {
  const double cores = rank.quota.cores;
  return fmt::format("a CPU quota of {:.3g} core{}", cores, cores == 1 ? "" : "s");
}

std::string crowd(int threads, const std::string& where) {
  return fmt::format("; oversubscribed: {} on {}, so times will be longer",
                     counted(threads, "thread"), where);
}

/// Describes "; oversubscribed: ..." if ranks that run on the same cores, or share a quota,
/// together have more threads.
std::string oversubscription(std::span<const ThreadFacts> ranks,
                             const std::vector<ThreadPlace>& places) {
  for (const ThreadPlace& mine : places) {
    for (const std::vector<int>& cores : {mine.cores, connected(mine.cores, places)}) {
      const int threads = threads_within(cores, places);
      if (threads > size(cores)) return crowd(threads, counted(std::ssize(cores), "core"));
    }
  }
  for (const ThreadFacts& mine : ranks) {
    int threads = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (share_quota(mine, ranks[i])) threads += places[i].threads;
    }
    if (threads > mine.quota.cores && mine.quota.cores > 0) {
      return crowd(threads, quota_of(mine));
    }
  }
  return "";
}

/// Describes "; a CPU quota of ..." if a quota, not the cores, determined the number of threads.
std::string quota_note(std::span<const ThreadFacts> ranks) {
  for (const ThreadFacts& mine : ranks) {
    ThreadFacts without = mine;
    without.quota = {};
    if (mine.quota.cores == 0 || asked_threads(mine, ranks) == asked_threads(without, ranks)) {
      continue;
    }
    return fmt::format("; {} leaves others unused", quota_of(mine));
  }
  return "";
}

/// Describes "; at most ..." if a rank would have more threads than its limit.
std::string limit_note(std::span<const ThreadFacts> ranks) {
  for (const ThreadFacts& mine : ranks) {
    const int asked = asked_threads(mine, ranks);
    if (asked <= mine.most) continue;
    return fmt::format("; a rank can have no more than {}, not {}{}", counted(mine.most, "thread"),
                       asked, mine.wanted > 0 ? "" : ": use more ranks");
  }
  return "";
}

/// Describes what costs time in the threads of a host; empty: nothing.
std::string warning(std::span<const ThreadFacts> ranks, const std::vector<ThreadPlace>& places) {
  std::string crowded = oversubscription(ranks, places);
  const bool chosen = std::ranges::any_of(ranks, &ThreadFacts::chooses_cores);
  const bool alike = chosen || std::ranges::any_of(ranks, [](const ThreadFacts& r) {
                       return !r.binders.empty() && size(r.runs_on) < size(r.cores);
                     });
  if (alike && !crowded.empty()) {
    const std::vector<std::string> binders = binders_of(ranks);
    const bool one = binders.size() == 1;
    crowded += fmt::format(": {} bind{} the threads of all ranks alike, unset {}",
                           fmt::join(binders, " and "), one ? "s" : "", one ? "it" : "them");
  }
  const std::string notes = crowded + quota_note(ranks) + limit_note(ranks);
  const double quota = ranks.front().quota.cores;
  const int usable = quota > 0 ? std::min(ranks.front().host_cores, static_cast<int>(quota))
                               : ranks.front().host_cores;
  const int idle = usable - size(union_of_cores(ranks));
  if (idle <= 0 || chosen || (notes.empty() && ranks.front().wanted > 0)) return notes;
  return fmt::format("{}; mpirun's binding leaves {} idle, use --bind-to none", notes,
                     counted(idle, "core"));
}

std::string describe_host(std::span<const ThreadFacts> ranks) {
  std::vector<ThreadPlace> places = place_threads(ranks);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (ranks[i].runs_on.empty()) continue;
    places[i].pinned = places[i].pinned && ranks[i].runs_on == places[i].cores;
    places[i].cores = ranks[i].runs_on;
  }
  std::vector<int> threads;
  for (const ThreadPlace& place : places) threads.push_back(place.threads);
  const bool equal = std::ranges::count(threads, threads[0]) == std::ssize(threads);
  const std::string each =
      equal ? counted(threads[0], "thread") : fmt::format("{} threads", fmt::join(threads, " | "));
  return fmt::format("{} x {}, cores {} ({}){}", counted(std::ssize(places), "rank"), each,
                     core_lists(places), binding(ranks, places), warning(ranks, places));
}

}  // namespace

std::vector<ThreadPlace> place_threads(std::span<const ThreadFacts> ranks) {
  std::vector<ThreadPlace> places;
  std::map<std::vector<int>, int> in_all;  // threads of the ranks with these cores
  for (const ThreadFacts& rank : ranks) {
    places.push_back({std::min(asked_threads(rank, ranks), rank.most), rank.cores, false});
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
  std::map<std::string, std::vector<std::string>> situations;  // description -> hosts
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
