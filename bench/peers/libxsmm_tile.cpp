// SPDX-License-Identifier: Apache-2.0
// The two products of a tile of attention by libxsmm and by oneDNN, alternately, on one thread; not
// part of the build, because nothing else needs libxsmm:
//   apt-get install libxsmm-dev libdnnl-dev
//   g++ -O2 bench/peers/libxsmm_tile.cpp -o build/libxsmm_tile -lxsmm -lxsmmnoblas -ldnnl -ldl
//   OMP_NUM_THREADS=1 taskset -c 0 build/libxsmm_tile
#include <libxsmm.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

constexpr int kTile = 128, kTimes = 400, kRounds = 15;

template <typename Action>
double gflops(double flops, const Action& action) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kTimes; ++i) action();
  return flops * kTimes / std::chrono::duration<double>(Clock::now() - begin).count() * 1e-9;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void compare(int dim) {
  std::vector<float> q(kTile * dim, 0.1f), k(q), s(kTile * kTile), out(q);
  // Column-major, as libxsmm reads: S^T = Q^T-panel x K, O = V x P.
  const libxsmm_smmfunction scores = libxsmm_smmdispatch(
      kTile, kTile, dim, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  const libxsmm_smmfunction values = libxsmm_smmdispatch(
      dim, kTile, kTile, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  if (scores == nullptr || values == nullptr) {
    std::printf("head_dim %d: libxsmm makes no kernel\n", dim);
    return;
  }
  const double flops = 4.0 * kTile * kTile * dim;
  std::vector<double> xsmm, dnnl;
  for (int round = 0; round < kRounds; ++round) {
    xsmm.push_back(gflops(flops, [&] {
      scores(q.data(), k.data(), s.data());
      values(k.data(), s.data(), out.data());
    }));
    dnnl.push_back(gflops(flops, [&] {
      dnnl_sgemm('N', 'T', kTile, kTile, dim, 1.0f, q.data(), dim, k.data(), dim, 0.0f, s.data(),
                 kTile);
      dnnl_sgemm('N', 'N', kTile, dim, kTile, 1.0f, s.data(), kTile, k.data(), dim, 0.0f,
                 out.data(), dim);
    }));
    std::fill(out.begin(), out.end(), 0.0f);
    std::fill(s.begin(), s.end(), 0.0f);
  }
  std::printf("head_dim %d: libxsmm %.1f, oneDNN %.1f GFLOP/s (medians of %d)\n", dim, median(xsmm),
              median(dnnl), kRounds);
}

}  // namespace

int main() {
  compare(64);
  compare(128);
}
