// SPDX-License-Identifier: Apache-2.0
#include "data/kept_index.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"

namespace cadenza::data {
namespace {

namespace fs = std::filesystem;

// Smaller files are scanned in a fraction of a second.
constexpr std::int64_t kLeastBytes = std::int64_t{1} << 26;
// A file that changed so lately may change again without another time of change.
constexpr std::int64_t kSettledSeconds = 2;

/// The folder of caches; empty where the environment names none.
fs::path cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (const fs::path own = variable("CADENZA_CACHE"); !own.empty()) return own;
  if (const fs::path all = variable("XDG_CACHE_HOME"); !all.empty()) return all / "cadenza";
  const fs::path home = variable("HOME");
  return home.empty() ? home : home / ".cache" / "cadenza";
}

/// Whether nobody else may write to a folder, which may not be there yet: its files are believed.
bool is_own(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return errno == ENOENT;
  return status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/// Where the index of `file` is kept; empty where none is.
std::string place_of(const TokenFile& file, Token end) {
  struct stat status {};
  const fs::path folder = cache_folder();
  if (file.size() < kLeastBytes / width(file.storage()) || folder.empty() ||
      ::stat(file.path().c_str(), &status) != 0) {
    return "";
  }
  const auto settled = std::time(nullptr) - kSettledSeconds;
  if (status.st_mtim.tv_sec > settled || status.st_ctim.tv_sec > settled) return "";
  std::error_code error;
  Hasher hash;
  hash.add(fs::absolute(file.path(), error).native());
  for (const std::int64_t number :
       {std::int64_t{status.st_size}, std::int64_t{status.st_mtim.tv_sec},
        std::int64_t{status.st_mtim.tv_nsec}, std::int64_t{status.st_ctim.tv_sec},
        std::int64_t{status.st_ctim.tv_nsec}, file.size(), std::int64_t{end}, file.vocab()}) {
    hash.add(static_cast<std::uint64_t>(number));
  }
  return folder / "documents" / fmt::format("{:016x}.idx", hash.value());
}

/// The index at `place`, where it is whole and as long as the file.
std::optional<MegatronIndex> open_kept(const std::string& place, const TokenFile& file) {
  std::error_code error;
  if (place.empty() || !is_own(fs::path(place).parent_path())) return std::nullopt;
  if (!fs::is_regular_file(place, error)) return std::nullopt;
  try {
    MegatronIndex index(place);
    if (index.fills(file.size())) return index;
  } catch (const Error&) {
    // Damaged: it is made again.
  }
  return std::nullopt;
}

/// The right to make the index at a place, which the system takes back when the process ends.
class Claim {
 public:
  /// @param wait  whether to wait for another that has it
  Claim(const std::string& place, bool wait) : part_(place + ".part") {
    std::error_code error;
    fs::create_directories(fs::path(place).parent_path(), error);
    if (!is_own(fs::path(place).parent_path())) return;
    descriptor_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    // Where nothing can be written or locked, everybody makes its own.
    busy_ = descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | (wait ? 0 : LOCK_NB)) != 0 &&
            errno == EWOULDBLOCK;
  }
  ~Claim() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  bool busy() const { return busy_; }
  /// Keeps an index at `place`; where that fails, there is none.
  void keep(const std::string& place, std::span<const std::int64_t> ends,
            TokenStorage storage) const {
    if (descriptor_ < 0) return;
    std::ofstream out(part_, std::ios::binary | std::ios::trunc);
    write_megatron_index(out, ends, storage);
    out.close();
    std::error_code error;
    if (out) fs::rename(part_, place, error);
    if (!out || error) drop();
  }
  /// Leaves nothing behind.
  void drop() const {
    std::error_code error;
    fs::remove(part_, error);
  }

 private:
  std::string part_;
  int descriptor_ = -1;
  bool busy_ = false;
};

std::vector<std::int64_t> scan(const TokenFile& file, Token end) {
  std::vector<std::int64_t> ends = file.find_ends(end);
  if (ends.empty() || ends.back() != file.size()) ends.push_back(file.size());
  return ends;
}

/// Finds the documents of one large file. @return nothing where another finds them now, and `wait`
/// is false
std::optional<FoundDocuments> find_in(const TokenFile& file, Token end, const std::string& place,
                                      bool wait) {
  if (auto index = open_kept(place, file)) return FoundDocuments{std::move(index)};
  const Claim claim(place, wait);
  if (claim.busy()) return std::nullopt;
  if (auto index = open_kept(place, file)) {  // another has made it since
    claim.drop();
    return FoundDocuments{std::move(index)};
  }
  std::vector<std::int64_t> ends = scan(file, end);
  claim.keep(place, ends, file.storage());
  if (auto index = open_kept(place, file)) return FoundDocuments{std::move(index)};
  return FoundDocuments{std::nullopt, std::move(ends)};
}

std::int64_t processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

std::vector<FoundDocuments> find_documents(const std::vector<const TokenFile*>& files, Token end,
                                           const ScanProgress& progress) {
  std::vector<FoundDocuments> found(files.size());
  std::vector<std::pair<std::size_t, std::string>> unknown;  // large files and where to keep theirs
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::string place = place_of(*files[i], end);
    if (place.empty()) {
      found[i].ends = scan(*files[i], end);
    } else if (!(found[i].index = open_kept(place, *files[i]))) {
      unknown.emplace_back(i, std::move(place));
    }
  }
  if (!unknown.empty() && progress) progress(0, std::ssize(unknown));
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  std::int64_t done = 0;
  const auto is_found = [&](std::size_t i) {
    const std::lock_guard lock(mutex);
    return found[i].index || !found[i].ends.empty();
  };
  // The first round leaves to others what they are at, the second one waits for them.
  const auto work = [&] {
    for (std::size_t turn; (turn = next++) < 2 * unknown.size();) {
      const auto& [i, place] = unknown[turn % unknown.size()];
      if (is_found(i)) continue;
      auto documents = find_in(*files[i], end, place, turn >= unknown.size());
      if (!documents || is_found(i)) continue;  // another thread had it
      const std::lock_guard lock(mutex);
      found[i] = std::move(*documents);
      if (progress) progress(++done, std::ssize(unknown));
    }
  };
  const auto work_unless_one_fails = [&] {
    try {
      work();
    } catch (...) {
      next = 2 * unknown.size();
      throw;
    }
  };
  std::vector<std::future<void>> threads;
  for (std::int64_t i = 0; i < std::min(processors(), std::ssize(unknown)); ++i) {
    threads.push_back(std::async(std::launch::async, work_unless_one_fails));
  }
  for (auto& thread : threads) thread.get();
  return found;
}

}  // namespace cadenza::data
