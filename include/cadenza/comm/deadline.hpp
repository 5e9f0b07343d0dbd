// SPDX-License-Identifier: Apache-2.0
// A bound in time for what has no form that can be polled: some calls of MPI, the start of threads.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace cadenza::comm {

/// While it lives, its process must not wait for more than `seconds` of the time in which it runs:
/// else a thread says in one line what it waits for and ends the process with exit code 5, since
/// the thread that waits cannot be called back.
class Deadline {
 public:
  /// @param what     "in MPI_Comm_split for a rank that does not answer"; a literal
  /// @param seconds  0: for ever
  Deadline(const char* what, double seconds, int rank);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  void watch(const char* what, double seconds, int rank);

  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;  ///< makes no calls of MPI
};

}  // namespace cadenza::comm
