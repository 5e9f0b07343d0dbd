// SPDX-License-Identifier: Apache-2.0
// llm.c's CPU trainer as a peer of bench_step: one training step (forward, zero_grad, backward,
// AdamW) whenever asked, on random weights and tokens. Compiled with a checkout of llm.c on the
// include path, whose train_gpt2.c holds all that is timed. Reads the requests of bench/measure.hpp
// that bench/compare sends: "prepare" (the numbers of its shape in the order of cases.py) and "run".
#define TESTING
#include "train_gpt2.c"

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static unsigned int state = 1;
static unsigned int draw(void) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static long number(const char *line, const char *key) {
  const char *found = strstr(line, key);
  return found ? strtol(found + strlen(key), NULL, 10) : 0;
}

static long peak_rss_kibibytes(void) {
  char line[256];
  long peak = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, "VmHWM:", 6) == 0) peak = strtol(line + 6, NULL, 10);
  }
  if (file) fclose(file);
  return peak;
}

// Weights near what a fresh GPT-2 has: layer norms 1, everything else small and random.
static void make_model(GPT2 *model, const char *line) {
  memset(model, 0, sizeof *model);
  model->config.num_layers = (int)number(line, "\"layers\": ");
  model->config.channels = (int)number(line, "\"channels\": ");
  model->config.num_heads = (int)number(line, "\"heads\": ");
  model->config.max_seq_len = (int)number(line, "\"tokens\": ");
  model->config.vocab_size = (int)number(line, "\"vocab\": ");
  model->config.padded_vocab_size = model->config.vocab_size;
  fill_in_parameter_sizes(model->param_sizes, model->config);
  for (int i = 0; i < NUM_PARAMETER_TENSORS; ++i) model->num_parameters += model->param_sizes[i];
  model->params_memory = malloc_and_point_parameters(&model->params, model->param_sizes);
  for (size_t i = 0; i < model->num_parameters; ++i) {
    model->params_memory[i] = 0.04f * ((float)draw() / (1 << 24) - 0.5f);
  }
  float *scales[] = {model->params.ln1w, model->params.ln2w, model->params.lnfw};
  size_t counts[] = {model->param_sizes[2], model->param_sizes[8], model->param_sizes[14]};
  for (int which = 0; which < 3; ++which) {
    for (size_t i = 0; i < counts[which]; ++i) scales[which][i] = 1.0f;
  }
}

// 6 per token and element of a matrix that multiplies, 3.5 x the causal forward attention.
static double step_flops(const GPT2Config *config, double batch) {
  const double width = config->channels, tokens = config->max_seq_len;
  const double matrices = config->num_layers * 12.0 * width * width + config->vocab_size * width;
  const double attention = 3.5 * config->num_layers * 2.0 * tokens * tokens * width;
  return batch * (6.0 * matrices * tokens + attention);
}

int main(void) {
  FILE *answers = fdopen(dup(1), "w");
  dup2(2, 1);  // what llm.c itself prints goes to the log
  char line[65536];
  GPT2 model;
  size_t batch = 0, tokens = 0;
  int *inputs = NULL, *targets = NULL;
  int step = 0;
  while (fgets(line, sizeof line, stdin)) {
    if (strstr(line, "\"prepare\"") && !inputs) {
      make_model(&model, line);
      batch = (size_t)number(line, "\"batch\": ");
      tokens = (size_t)model.config.max_seq_len;
      inputs = malloc(batch * tokens * sizeof *inputs);
      targets = malloc(batch * tokens * sizeof *targets);
      for (size_t i = 0; i < batch * tokens; ++i) {
        inputs[i] = (int)(draw() % (unsigned)model.config.vocab_size);
        targets[i] = (int)(draw() % (unsigned)model.config.vocab_size);
      }
      fprintf(answers, "{\"flops\": %.0f}\n", step_flops(&model.config, (double)batch));
    } else if (strstr(line, "\"run\"") && inputs) {
      const double begin = now();
      gpt2_forward(&model, inputs, targets, batch, tokens);
      gpt2_zero_grad(&model);
      gpt2_backward(&model);
      gpt2_update(&model, 3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, ++step);
      const double seconds = now() - begin;
      fprintf(answers, "{\"seconds\": %.6f, \"peak_rss_bytes\": %ld, \"loss\": %f}\n", seconds,
              peak_rss_kibibytes() * 1024, model.mean_loss);
    } else {
      fprintf(answers, "{\"error\": \"valid requests: one prepare, then run\"}\n");
    }
    fflush(answers);
  }
  return 0;
}
