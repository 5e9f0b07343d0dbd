// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/cpu_quota.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "cadenza/base/hash.hpp"

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

/// Where a hierarchy of control groups can be seen.
struct Mount {
  std::string root;   ///< the group that `point` shows
  std::string point;  ///< folder
  bool v2 = false;
};

/// Of a line of /proc/self/mountinfo; nothing where it is no hierarchy that limits processor time.
std::optional<Mount> mount_of(const std::string& line) {
  std::istringstream stream(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  const auto dash = std::ranges::find(words, "-");  // between them are any number of options
  if (dash - words.begin() < 6 || words.end() - dash < 4) return std::nullopt;
  const std::string& type = dash[1];
  const bool v2 = type == "cgroup2";
  if (!v2 && (type != "cgroup" || !names_cpu(dash[3]))) return std::nullopt;
  return Mount{words[3], words[4], v2};
}

/// This process's group in such a hierarchy, from the lines of /proc/self/cgroup; empty: none.
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
  return stream >> value ? std::optional(value) : std::nullopt;  // "max" is none
}

/// What the files of one group say; 0: no limit.
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

/// Of the group and all around it that `mount` shows.
CpuQuota tightest(const std::string& root, const Mount& mount, const std::string& group) {
  // Seen from within a container, a group may lie outside of what is mounted there.
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

}  // namespace cadenza::app
