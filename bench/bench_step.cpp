// SPDX-License-Identifier: Apache-2.0
// A training step: tokens per second, share of the machine's matrix-product rate, memory.
#include "command_line.hpp"
#include "kernel_work.hpp"
#include "step_work.hpp"

int main(int argc, char** argv) {
  using cadenza::bench::Json;
  CLI::App app("Times a training step and prints JSON; OMP_NUM_THREADS sets the threads.",
               "bench_step");
  std::int64_t layers = 4;
  std::int64_t d_model = 512;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 4;
  std::int64_t ffn = 1408;
  std::int64_t vocab = 8192;
  std::vector<std::int64_t> documents = {4096, 2048, 1024, 512, 512};
  std::string dtype = "float32";
  app.add_option("--layers", layers, "Transformer layers")->capture_default_str();
  app.add_option("--d-model", d_model, "Width of the model")->capture_default_str();
  app.add_option("--heads", heads, "Query heads")->capture_default_str();
  app.add_option("--kv-heads", kv_heads, "Key-value heads")->capture_default_str();
  app.add_option("--ffn", ffn, "Width of the SwiGLU branch")->capture_default_str();
  app.add_option("--vocab", vocab, "Vocabulary")->capture_default_str();
  app.add_option("--documents", documents, "Lengths of the documents, tokens, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--dtype", dtype, "float32 or bfloat16")->capture_default_str();
  cadenza::bench::Repetitions repetitions;
  add_repetitions(app, repetitions);
  const auto make = [](const Json& request) {
    return request.value("kind", "step") == "kernels" ? cadenza::bench::make_kernels(request)
                                                      : cadenza::bench::make_step(request);
  };
  return run(app, argc, argv, repetitions, make, [&] {
    return Json{{"layers", layers},       {"d_model", d_model}, {"heads", heads},
                {"kv_heads", kv_heads},   {"ffn", ffn},         {"vocab", vocab},
                {"documents", documents}, {"dtype", dtype}};
  });
}
