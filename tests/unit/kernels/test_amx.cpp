// SPDX-License-Identifier: Apache-2.0
// What only a processor with AMX can show. The kernels themselves run in test_cpu_attention.cpp, on
// its tiles and on software tiles.
#include <gtest/gtest.h>

#include "unit/kernels/kernel_sets.hpp"

#ifndef KOKKOS_ENABLE_CUDA
#if defined(__linux__) && defined(__x86_64__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#endif

namespace cadenza::testing {
namespace {

/// Share of the rows that differ by more than `bound`.
double share_beyond(double bound, const Vector& a, const Vector& b) {
  std::size_t beyond = 0;
  for (std::size_t i = 0; i < a.size(); ++i) beyond += max_difference({a[i]}, {b[i]}) > bound;
  return static_cast<double>(beyond) / static_cast<double>(a.size());
}

/// Both round the same numbers to bfloat16. Sums in another order, another exponential (3e-6) and
/// products with or without fma in the rotation of Q move few of them across a boundary; a wrong
/// tile, row or pair moves all.
TEST(Amx, EqualsSoftwareTiles) {
  const TileKernels* amx = kernels::cpu::amx_bfloat16_kernels();
  if (amx == nullptr) GTEST_SKIP() << "this processor has no AMX, or the system refuses its state";
  const TileKernels& software = *kernels::cpu::software_tile_kernels();
  std::mt19937_64 random(13);
  for (const int dim : {32, 96, 128, 256}) {
    SCOPED_TRACE("head_dim " + std::to_string(dim));
    Case of = make_case({{2, 1, dim}, 10000, {300, 77}, true, 0.2, 0.2}, random);
    round_to_bfloat16(of);
    const auto a = computed(of, 1, tuned<bfloat16>(*amx));
    const auto b = computed(of, 1, tuned<bfloat16>(software));
    for (std::size_t d = 0; d < a.size(); ++d) {
      constexpr double kFewRoundings = 0.1 / 512;
      EXPECT_LE(relative_difference(a[d].out, b[d].out), kFewRoundings);
      EXPECT_LE(relative_difference(a[d].dq, b[d].dq), kFewRoundings);
      EXPECT_LE(relative_difference(a[d].dk, b[d].dk), kFewRoundings);
      EXPECT_LE(relative_difference(a[d].dv, b[d].dv), kFewRoundings);
      EXPECT_LE(max_difference(a[d].lse, b[d].lse), 1.0 / 512);  // a row of few keys
      EXPECT_LE(share_beyond(4e-6, a[d].lse, b[d].lse), 0.05);
    }
  }
}

TEST(Amx, IsNotRefusedWhereItRuns) {
  const TileKernels* amx = kernels::cpu::amx_bfloat16_kernels();
  if (amx == nullptr) GTEST_SKIP() << "this processor has no AMX, or the system refuses its state";
  EXPECT_FALSE(kernels::cpu::amx_was_refused());
  EXPECT_EQ(kernels::cpu::best_kernels<bfloat16>(), amx);
}

#if defined(__linux__) && defined(__x86_64__)
/// Lets this thread's arch_prctl fail, as under a container's filter.
bool refuse_arch_prctl() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

enum Choice { kMissing = 0, kRefused = 10, kWrong = 11, kNoFilter = 12 };

[[noreturn]] void exit_with_choice_under_refusal() {
  if (!refuse_arch_prctl()) std::_Exit(kNoFilter);
  const bool none = kernels::cpu::amx_bfloat16_kernels() == nullptr;
  const auto& tables = kernels::cpu::tables<bfloat16>();
  const bool next = tables.empty() || tables.front().name != AttentionKernel::amx;
  std::_Exit(none && next ? (kernels::cpu::amx_was_refused() ? kRefused : kMissing) : kWrong);
}

/// In a process of its own, which has not asked yet.
TEST(Amx, RefusedPermissionMeansTheNextKernels) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Not asked here before: the other process runs this test from its begin.
  const auto refused_or_missing = [](int status) {
    if (!WIFEXITED(status)) return false;
    if (WEXITSTATUS(status) == kMissing) return kernels::cpu::amx_bfloat16_kernels() == nullptr;
    return WEXITSTATUS(status) == kRefused;
  };
  EXPECT_EXIT(exit_with_choice_under_refusal(), refused_or_missing, "");
}
#endif

}  // namespace
}  // namespace cadenza::testing

#endif
