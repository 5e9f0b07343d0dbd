// SPDX-License-Identifier: Apache-2.0
// attention.kernel: cudnn. On a device as it is called; elsewhere all of it but cuDNN: each call
// that it would make is computed by a plain formula.
#include <gmock/gmock.h>

#include <cmath>

#include "../../../kernels/cudnn/staged_pass.hpp"
#include "../../../kernels/cudnn/staging.hpp"
#include "cadenza/base/error.hpp"
#include "unit/kernels/kernel_sets.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::testing {
namespace {

namespace cudnn = kernels::cudnn;

/// The parts of a rectangle of its own buffers.
std::vector<cudnn::SdpaCall> calls_of(const Task& task, const kernels::AttentionShape& shape,
                                      Pass pass = Pass::forward) {
  kernels::TaskList<bfloat16> list;
  list.queries.push_back({task.q});
  list.keys.push_back({task.k});
  list.tasks.push_back({task, 0, 0});
  return cudnn::sdpa_calls(pass, shape, list);
}

/// Without the tasks that have a gradient of one query and one key, which cuDNN refuses.
Case covered(Case of) {
  std::erase_if(of.pieces, [&](const Piece& piece) {
    const auto calls = calls_of(piece.task, of.shape);
    return std::ranges::any_of(calls, [](const cudnn::SdpaCall& call) {
      return call.shape.queries == 1 && call.shape.keys == 1;
    });
  });
  return of;
}

#ifdef KOKKOS_ENABLE_CUDA

bool cudnn_is_here() {
  const auto here = kernels::available_attention_kernels<bfloat16>();
  return std::ranges::find(here, AttentionKernel::cudnn) != here.end();
}

void expect_cudnn(Case of, int calls = 1) {
  of.shape.kernel = AttentionKernel::cudnn;
  expect_within(computed<bfloat16>(of, calls), reference(of), kBfloat16);
}

#define CADENZA_NEEDS_CUDNN() \
  if (!cudnn_is_here()) GTEST_SKIP() << "this build has no cuDNN"

#else

#define CADENZA_NEEDS_CUDNN()

/// One call by definition, rounded where cuDNN's results are.
struct PlainSdpa {
  /// Rows that its diagonals are off by: a fault that tests plant.
  std::int64_t planted = 0;

  /// A row's logits; -inf: it does not see the key.
  std::vector<double> logits(const cudnn::SdpaShape& shape, const cudnn::SdpaRows& rows, int head,
                             std::int64_t query) const {
    std::vector<double> made;
    for (std::int64_t key = 0; key < shape.keys; ++key) {
      double sum = 0;
      for (int d = 0; d < shape.head_dim; ++d) {
        sum +=
            value(rows.q[q_at(shape, head, query) + d]) * value(rows.k[k_at(shape, head, key) + d]);
      }
      made.push_back(shape.sees(query + planted, key) ? sum / std::sqrt(shape.head_dim)
                                                      : -std::numeric_limits<double>::infinity());
    }
    return made;
  }

  void forward(const cudnn::SdpaShape& shape, const cudnn::SdpaRows& rows) const {
    for_each_row(shape, [&](int head, std::int64_t query) {
      const std::vector<double> logit = logits(shape, rows, head, query);
      double sum = 0;
      for (const double each : logit) sum += std::exp(each);
      rows.stats[head * shape.queries + query] = static_cast<float>(std::log(sum));
      for (int d = 0; d < shape.head_dim; ++d) {
        double out = 0;
        for (std::int64_t key = 0; key < shape.keys; ++key) {
          out += std::exp(logit[static_cast<std::size_t>(key)]) / sum *
                 value(rows.v[k_at(shape, head, key) + d]);
        }
        rows.out[packed(shape, head, query) + d] = bfloat16(out);
      }
    });
  }

  void backward(const cudnn::SdpaShape& shape, const cudnn::SdpaRows& rows) const {
    const auto key_elements =
        static_cast<std::size_t>(shape.keys * shape.kv_heads * shape.head_dim);
    std::vector<double> dk(key_elements), dv(key_elements);
    for_each_row(shape, [&](int head, std::int64_t query) {
      const std::vector<double> logit = logits(shape, rows, head, query);
      const bfloat16* dout = rows.dout + q_at(shape, head, query);
      const bfloat16* out = rows.out + packed(shape, head, query);
      double delta = 0;
      for (int d = 0; d < shape.head_dim; ++d) delta += value(dout[d]) * value(out[d]);
      std::vector<double> dq(static_cast<std::size_t>(shape.head_dim));
      for (std::int64_t key = 0; key < shape.keys; ++key) {
        const double p = std::exp(logit[static_cast<std::size_t>(key)] -
                                  rows.stats[head * shape.queries + query]);
        const std::int64_t at = k_at(shape, head, key);
        double dp = 0;
        for (int d = 0; d < shape.head_dim; ++d) dp += value(dout[d]) * value(rows.v[at + d]);
        const double ds = p * (dp - delta) / std::sqrt(shape.head_dim);
        const std::int64_t to =
            (key * shape.kv_heads + head / (shape.heads / shape.kv_heads)) * shape.head_dim;
        for (int d = 0; d < shape.head_dim; ++d) {
          dq[static_cast<std::size_t>(d)] += ds * value(rows.k[at + d]);
          dk[static_cast<std::size_t>(to + d)] += ds * value(rows.q[q_at(shape, head, query) + d]);
          dv[static_cast<std::size_t>(to + d)] += p * value(dout[d]);
        }
      }
      round(dq, rows.dq + packed(shape, head, query));
    });
    round(dk, rows.dk);
    round(dv, rows.dv);
  }

 private:
  static double value(bfloat16 from) { return static_cast<double>(static_cast<float>(from)); }
  static void round(const std::vector<double>& from, bfloat16* to) {
    for (const double each : from) *to++ = bfloat16(each);
  }
  static std::int64_t q_at(const cudnn::SdpaShape& shape, int head, std::int64_t query) {
    return query * shape.q_row + head * shape.head_dim;
  }
  static std::int64_t k_at(const cudnn::SdpaShape& shape, int head, std::int64_t key) {
    return key * shape.k_row + head / (shape.heads / shape.kv_heads) * shape.head_dim;
  }
  static std::int64_t packed(const cudnn::SdpaShape& shape, int head, std::int64_t query) {
    return (query * shape.heads + head) * shape.head_dim;
  }
  template <typename Row>
  static void for_each_row(const cudnn::SdpaShape& shape, const Row& row) {
    for (int head = 0; head < shape.heads; ++head) {
      for (std::int64_t query = 0; query < shape.queries; ++query) row(head, query);
    }
  }
};

auto staged_sdpa(Pass pass, PlainSdpa plain) {
  return [=](const kernels::AttentionShape& shape, const kernels::RotaryTable<float>& rotary,
             const kernels::TaskList<bfloat16>& list) {
    const cudnn::StagedPass staged(pass, shape, rotary, list);
    const Array<unsigned char> memory("memory of a pass", staged.bytes());
    staged.run(memory.data(), [=](const cudnn::SdpaShape& of, const cudnn::SdpaRows& rows) {
      enqueue([=] { pass == Pass::forward ? plain.forward(of, rows) : plain.backward(of, rows); });
    });
    fence();
  };
}

Kernels<bfloat16> around_sdpa(PlainSdpa plain) {
  return {staged_sdpa(Pass::forward, plain), staged_sdpa(Pass::backward, plain)};
}

void expect_cudnn(const Case& of, int calls = 1) {
  expect_within(computed(of, calls, around_sdpa({})), reference(of), kBfloat16);
}

#endif

TEST(Cudnn, EqualsDefinitionForEveryHeadDimAndGroup) {
  CADENZA_NEEDS_CUDNN();
  std::mt19937_64 random(1);
  for (const kernels::AttentionShape shape :
       {kernels::AttentionShape{2, 1, 64}, {4, 2, 128}, {3, 1, 8}, {6, 2, 72}}) {
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim));
    expect_cudnn(covered(rounded_case({shape, 10000, {20, 50}, true, 0.2, 0}, random)));
  }
}

TEST(Cudnn, EqualsDefinitionForRandomTasksOfEveryRule) {
  CADENZA_NEEDS_CUDNN();
  std::mt19937_64 random(2);
  for (int round = 0; round < (kSanitized ? 1 : 6); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options = every_rule({4, 2, 16}, round, {20, 130}, random);
    expect_cudnn(covered(rounded_case(options, random)), 1 + round % 3);
  }
}

/// Random diagonals, tokens, positions and maps of them, bands, slices of heads.
TEST(Cudnn, EqualsDefinitionForStripesBandsAndMaps) {
  CADENZA_NEEDS_CUDNN();
  std::mt19937_64 random(3);
  const kernels::AttentionShape shapes[] = {{4, 2, 32}, {2, 2, 64}, {6, 2, 32}};
  for (int round = 0; round < (kSanitized ? 1 : 9); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options = stripes_bands_and_maps(shapes[round % 3], round, {20, 130}, random);
    expect_cudnn(covered(rounded_case(options, random)), 1 + round % 2);
  }
}

#ifndef KOKKOS_ENABLE_CUDA

/// What stands in for O holds where dO * V and delta are large beside their difference. O rounded
/// to bfloat16, as the forward pass leaves it here, does not.
TEST(Cudnn, DeltaSurvivesItsStandIn) {
  std::mt19937_64 random(4);
  Case of = rounded_case({{2, 1, 64}, 10000, {90}, false, 0, 0}, random);
  for (double& each : of.documents[0].v) each += 6;
  for (double& each : of.documents[0].dout) each *= 1e-3;
  round_to_bfloat16(of);
  const TileKernels* in_float32 = kernels::cpu::avx2_widening_kernels();
  if (in_float32 == nullptr) GTEST_SKIP() << "this processor has no AVX2";
  Kernels<bfloat16> by = around_sdpa({});
  by.forward = tuned<bfloat16>(*in_float32).forward;
  const std::vector<DocumentResult> expected = reference(of);
  expect_within(computed(of, 1, by), expected, kBfloat16);
  EXPECT_GT(relative_difference(computed(of, 1, around_sdpa({}))[0].dq, expected[0].dq),
            kBfloat16.gradients);
}

TEST(Cudnn, OutIsNotReadBeforeItIsWritten) {
  const float infinity = std::numeric_limits<float>::infinity();
  float lse = -infinity, stats = 3, old = 0, out = std::nanf("");
  const bfloat16 own(2.0F);
  const cudnn::Window window{1, 1, 1};
  cudnn::MergeLse{window, &lse, &stats, &old}(0);
  cudnn::MergeOut{window, 1, &out, &own, &stats, &old}(0);
  EXPECT_EQ(lse, 3);
  EXPECT_EQ(out, 2);
}

/// What these tests are for: a diagonal that is off by one shows, to whichever side.
TEST(Cudnn, WrongDiagonalIsFound) {
  std::mt19937_64 random(5);
  const Case of = covered(rounded_case({{2, 1, 32}, 10000, {90}, true, 0, 0}, random));
  const std::vector<DocumentResult> expected = reference(of);
  for (const std::int64_t planted : {-1, 1}) {
    const std::vector<DocumentResult> got = computed(of, 1, around_sdpa({planted}));
    EXPECT_GT(relative_difference(got[0].out, expected[0].out), kBfloat16.out);
    EXPECT_GT(relative_difference(got[0].dq, expected[0].dq), kBfloat16.gradients);
    EXPECT_GT(relative_difference(got[0].dk, expected[0].dk), kBfloat16.gradients);
    EXPECT_GT(relative_difference(got[0].dv, expected[0].dv), kBfloat16.gradients);
  }
}

#endif

#ifndef CADENZA_CUDNN

TEST(Cudnn, AskedForWhereItIsNotBuiltSaysSo) {
  kernels::AttentionShape shape{2, 1, 64};
  shape.kernel = AttentionKernel::cudnn;
  try {
    kernels::attention_kernel<bfloat16>(shape);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), ::testing::StartsWith("attention.kernel: found cudnn; valid for "
                                                    "bfloat16 here: auto, "));
  }
}

#endif

/// How often calls compute each pair of a task of one head.
std::vector<int> visits(const Task& task, std::int64_t planted = 0) {
  const auto width = static_cast<std::size_t>(task.k.size());
  std::vector<int> count(static_cast<std::size_t>(task.q.size()) * width);
  for (const cudnn::SdpaCall& call : calls_of(task, {1, 1, 8})) {
    for (std::int64_t i = 0; i < call.shape.queries; ++i) {
      for (std::int64_t j = 0; j < call.shape.keys; ++j) {
        if (!call.shape.sees(i + planted, j)) continue;
        ++count[static_cast<std::size_t>(call.q_begin + i) * width +
                static_cast<std::size_t>(call.k_begin + j)];
      }
    }
  }
  return count;
}

std::vector<int> allowed(const Task& task) {
  std::vector<int> count;
  for (std::int64_t i = task.q.begin; i < task.q.end; ++i) {
    for (std::int64_t j = task.k.begin; j < task.k.end; ++j) count.push_back(task.band.sees(i, j));
  }
  return count;
}

Task random_rectangle(std::mt19937_64& random) {
  const auto at_most = [&](int most) { return static_cast<std::int64_t>(random() % most); };
  Task task;
  task.q.begin = at_most(30) - 10;
  task.q.end = task.q.begin + 1 + at_most(20);
  task.k.begin = at_most(30) - 10;
  task.k.end = task.k.begin + 1 + at_most(20);
  task.heads = {0, 1};
  task.band = random() % 8 == 0 ? Band::full() : Band::causal(at_most(50) - 25);
  if (random() % 2 == 0) task.band.low = std::min(task.band.high, at_most(50)) - at_most(25);
  return task;
}

TEST(SdpaCalls, ComputeEachPairOfEveryBandOnce) {
  std::mt19937_64 random(6);
  int most = 0;
  int differences = 0;
  for (int round = 0; round < 20000; ++round) {
    const Task task = random_rectangle(random);
    ASSERT_EQ(visits(task), allowed(task))
        << "queries " << task.q.begin << ".." << task.q.end << ", keys " << task.k.begin << ".."
        << task.k.end << ", band " << task.band.low << ".." << task.band.high;
    differences += visits(task, 1) != allowed(task) ? 1 : 0;
    most = std::max(most, static_cast<int>(calls_of(task, {1, 1, 8}).size()));
  }
  EXPECT_EQ(most, 3);
  EXPECT_GT(differences, 5000);  // a wrong diagonal would show
}

/// What cuDNN asks of a call with an edge.
TEST(SdpaCalls, EveryQuerySeesAKeyAndEdgesFitTheRectangle) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 5000; ++round) {
    for (const cudnn::SdpaCall& call : calls_of(random_rectangle(random), {1, 1, 8})) {
      const cudnn::SdpaShape& shape = call.shape;
      EXPECT_TRUE(shape.queries <= shape.keys || (!shape.causal && shape.left == 0));
      EXPECT_GE(shape.left, 0);
      for (std::int64_t i = 0; i < shape.queries; ++i) {
        bool any = false;
        for (std::int64_t j = 0; j < shape.keys; ++j) any = any || shape.sees(i, j);
        EXPECT_TRUE(any);
      }
    }
  }
}

TEST(SdpaCalls, WholeDocumentsAndRectanglesAreOneCall) {
  const auto only = [](const Task& task) {
    const auto calls = calls_of(task, {8, 2, 128});
    EXPECT_EQ(calls.size(), 1u);
    return calls.at(0).shape;
  };
  const cudnn::SdpaShape document = only({0, {0, 100}, {0, 100}, {0, 8}});
  EXPECT_EQ(document, (cudnn::SdpaShape{8, 2, 128, 100, 100, 1024, 256, true, 0}));
  const cudnn::SdpaShape shard = only({0, {60, 100}, {0, 100}, {0, 8}});
  EXPECT_EQ(shard, (cudnn::SdpaShape{8, 2, 128, 40, 100, 1024, 256, true, 0}));
  const cudnn::SdpaShape before = only({0, {60, 100}, {0, 50}, {0, 8}});
  EXPECT_EQ(before, (cudnn::SdpaShape{8, 2, 128, 40, 50, 1024, 256, false, 0}));
  const cudnn::SdpaShape window = only({0, {0, 100}, {0, 100}, {0, 8}, Band::window(16)});
  EXPECT_EQ(window, (cudnn::SdpaShape{8, 2, 128, 100, 100, 1024, 256, true, 16}));
}

/// A call has whole groups of heads, or some of one.
TEST(SdpaCalls, SlicesOfHeadsAreCutAtGroups) {
  const auto calls = calls_of({0, {0, 10}, {0, 10}, {2, 13}}, {16, 4, 64});
  ASSERT_EQ(calls.size(), 3u);
  const int expected[][4] = {{2, 2, 0, 1}, {4, 8, 1, 2}, {12, 1, 3, 1}};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto [q_head, heads, k_head, kv_heads] = expected[i];
    EXPECT_EQ(calls[i].q_head, q_head);
    EXPECT_EQ(calls[i].shape.heads, heads);
    EXPECT_EQ(calls[i].k_head, k_head);
    EXPECT_EQ(calls[i].shape.kv_heads, kv_heads);
  }
}

TEST(SdpaCalls, SayWhatCudnnDoesNotCompute) {
  const Task one{3, {5, 6}, {5, 6}, {0, 1}};
  EXPECT_EQ(calls_of(one, {1, 1, 64}).size(), 1u);
  try {
    calls_of(one, {1, 1, 64}, Pass::backward);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(),
                 "attention.kernel: cudnn has no gradient of one query and one key: tokens 5 and 5 "
                 "of document 3");
  }
  EXPECT_TRUE(cudnn::fits({1, 1, 64}));
  EXPECT_TRUE(cudnn::fits({1, 1, 128}));
  EXPECT_TRUE(cudnn::fits({1, 1, 72}));
  EXPECT_FALSE(cudnn::fits({1, 1, 36}));
  EXPECT_FALSE(cudnn::fits({1, 1, 256}));
}

}  // namespace
}  // namespace cadenza::testing
