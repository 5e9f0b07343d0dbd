// SPDX-License-Identifier: Apache-2.0
// Runs code in a child process that may meet a full disk, crash or hang, and says what became of
// it.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

namespace cadenza::test {

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "cadenza-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ / name; }
  std::string string() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct ChildResult {
  int exit_code = -1;  ///< -1: it did not exit by itself
  int signal = 0;      ///< that ended it
  bool hung = false;   ///< had to be killed after the time limit
  std::string output;  ///< standard output and error
};

/// Runs `work` in a child that then exits the ordinary way, with exit handlers, and its return
/// value.
inline ChildResult run_child(const std::function<int()>& work, int limit_seconds = 120) {
  // A pipe, since a file's size may be limited; what a test prints fits into its buffer.
  int output[2];
  if (pipe(output) != 0) std::abort();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(output[1], STDOUT_FILENO);
    dup2(output[1], STDERR_FILENO);
    std::exit(work());
  }
  close(output[1]);
  ChildResult result;
  int status = 0;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(limit_seconds);
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > limit) {
      result.hung = true;
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  char buffer[4096];
  for (ssize_t n; (n = read(output[0], buffer, sizeof buffer)) > 0;)
    result.output.append(buffer, n);
  close(output[0]);
  return result;
}

/// From here on files of this process cannot grow beyond `bytes`: writes fail as on a full disk.
inline void limit_file_size(std::size_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace cadenza::test
