// SPDX-License-Identifier: Apache-2.0
// main() of every MPI test: all ranks run all tests, rank 0 reports them, any rank reports what
// fails on it, and one failing rank fails the program on all.
#include <gmock/gmock.h>
#include <mpi.h>

#include <Kokkos_Core.hpp>
#include <cstdio>

#include "device_here.hpp"

namespace {

/// Prints failures of one rank. After a fatal one (a failed ASSERT, an exception) this rank has
/// left the test that the others still communicate in, so it ends the job instead of letting them
/// wait.
class RankFailures : public testing::EmptyTestEventListener {
 public:
  RankFailures(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (rank_ != 0 && part.failed()) {
      std::fprintf(stderr, "[rank %d] %s:%d: Failure\n%s\n", rank_,
                   part.file_name() ? part.file_name() : "unknown file", part.line_number(),
                   part.message());
    }
  }

  void OnTestEnd(const testing::TestInfo& info) override {
    if (ranks_ > 1 && info.result()->HasFatalFailure()) {
      std::fprintf(stderr, "[rank %d] %s.%s failed fatally; ending all ranks\n", rank_,
                   info.test_suite_name(), info.name());
      std::fflush(nullptr);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }

 private:
  int rank_;
  int ranks_;
};

int run_tests(int rank, int ranks) {
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
  }
  listeners.Append(new RankFailures(rank, ranks));
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (!cadenza::testing::device_is_here()) return cadenza::testing::kSkipped;
  int provided = 0;
  int rank = 0;
  int ranks = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int failed = 1;
  {
    Kokkos::ScopeGuard kokkos(argc, argv);
    testing::InitGoogleMock(&argc, argv);
    failed = run_tests(rank, ranks);
  }
  MPI_Finalize();
  return failed;
}
