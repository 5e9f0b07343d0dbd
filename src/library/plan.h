/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a batch through a C interface, for a process that is not ours (planner/): no MPI, no
 * threads, no files. Calls may run at the same time. */
#ifndef CADENZA_LIBRARY_PLAN_H
#define CADENZA_LIBRARY_PLAN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cadenza_plan cadenza_plan;

/* Tables of a plan, in rows of 8-byte fields; ranges are half-open. Ranks are those of a pool and
 * documents are counted over the whole step, as in the JSON of `cadenza plan`. */
enum {
  CADENZA_TASKS,
  CADENZA_MOVES,
  CADENZA_MERGES,
  CADENZA_HOMES,
  CADENZA_DOCUMENTS,
  CADENZA_POOLS
};

/* Query i of the task sees key j where i + low <= j <= i + high. */
typedef struct {
  int64_t tick, half, stage, server, document;
  int64_t q_begin, q_end, k_begin, k_end, head_begin, head_end, low, high;
  double flops;
} cadenza_task;

/* `what`: 0 Q, 1 K, 2 V, 3 O, 4 LSE; of K and V, heads count key-value heads. */
typedef struct {
  int64_t tick, half, stage, from, to, what, document;
  int64_t token_begin, token_end, head_begin, head_end, bytes;
} cadenza_move;

/* A row for every contributor to a range of outputs. */
typedef struct {
  int64_t tick, half, owner, contributor, document;
  int64_t token_begin, token_end, head_begin, head_end;
} cadenza_merge;

typedef struct {
  int64_t tick, rank, document, token_begin, token_end;
} cadenza_home;

/* Document `index` of a microbatch, as the plans count it. `phase`: 0 in the forward pass of
 * `stage`, 1 in its backward pass, whose plan is the mirror image; the same but for pipelines,
 * whose stages have one pool. */
typedef struct {
  int64_t tick, document, phase, stage, microbatch, index, length;
} cadenza_document;

/* The world rank that is `rank` in the plans of a pool. */
typedef struct {
  int64_t pool, rank, world_rank;
} cadenza_member;

/* Plans the forward passes of a step.
 * settings   `count` keys of an experiment, "parallel.data=4"; those of the model that plans do not
 *            depend on may be left out
 * machine    text of a machine file; null: nominal rates
 * documents  documents of each of `microbatches` microbatches; microbatch i is data rank
 *            i mod parallel.data's
 * lengths    tokens of all documents, in order
 * message    receives what is wrong, one line
 * Returns 0, or the exit code that `cadenza` would have (docs: README): 2, 3 wrong input, 1
 * internal. */
int cadenza_plan_make(const char* const* settings, int64_t count, const char* machine,
                      const int64_t* documents, int64_t microbatches, const int64_t* lengths,
                      cadenza_plan** plan, char* message, int64_t message_size);

/* Returns the number of rows of a table; `rows` points at them until the plan is freed. */
int64_t cadenza_plan_table(const cadenza_plan* plan, int table, const void** rows);

void cadenza_plan_free(cadenza_plan* plan);

#ifdef __cplusplus
}
#endif
#endif
