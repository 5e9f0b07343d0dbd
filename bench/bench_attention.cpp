// SPDX-License-Identifier: Apache-2.0
// Core attention alone: time, rate, and share of the machine's matrix-product rate.
#include "attention_work.hpp"
#include "command_line.hpp"

int main(int argc, char** argv) {
  using cadenza::bench::Json;
  CLI::App app("Times core attention and prints JSON; OMP_NUM_THREADS sets the threads.",
               "bench_attention");
  int heads = 4;
  int kv_heads = 4;
  int head_dim = 128;
  std::int64_t task = 0;
  std::vector<std::int64_t> documents = {4096};
  std::string pass = "forward";
  std::string dtype = "float32";
  std::string kernel = "auto";
  app.add_option("--heads", heads, "Query heads")->capture_default_str();
  app.add_option("--kv-heads", kv_heads, "Key-value heads")->capture_default_str();
  app.add_option("--head-dim", head_dim, "Elements of a head")->capture_default_str();
  app.add_option("--documents", documents, "Lengths of the documents, tokens, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--task", task, "Queries of a task; 0: a document is one task")
      ->capture_default_str();
  app.add_option("--pass", pass, "forward or backward")->capture_default_str();
  app.add_option("--dtype", dtype, "float32 or bfloat16")->capture_default_str();
  app.add_option("--kernel", kernel, "As attention.kernel of an experiment")->capture_default_str();
  bool rotate = false;
  std::int64_t window = 0, chunk = 0, local = 0;
  app.add_flag("--rotate", rotate, "Rotate Q, as training does");
  app.add_option("--window", window, "Keys of a sliding window; 0: none")->capture_default_str();
  app.add_option("--chunk", chunk, "Positions of dual chunk attention; 0: none")
      ->capture_default_str();
  app.add_option("--local", local, "Of them, those that chunks share")->capture_default_str();
  std::int64_t slashes = 0, columns = 0, block = 64;
  app.add_option("--slashes", slashes, "Diagonals of a vertical-slash pattern; 0: none")
      ->capture_default_str();
  app.add_option("--columns", columns, "Its columns; 0: none")->capture_default_str();
  app.add_option("--block", block, "Tokens of its blocks")->capture_default_str();
  cadenza::bench::Repetitions repetitions;
  add_repetitions(app, repetitions);
  return run(app, argc, argv, repetitions, cadenza::bench::make_attention, [&] {
    return Json{{"heads", heads},     {"kv_heads", kv_heads},   {"head_dim", head_dim},
                {"task", task},       {"documents", documents}, {"pass", pass},
                {"dtype", dtype},     {"kernel", kernel},       {"rotate", rotate},
                {"window", window},   {"chunk", chunk},         {"local", local},
                {"slashes", slashes}, {"columns", columns},     {"block", block}};
  });
}
