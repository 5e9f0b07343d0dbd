# SPDX-License-Identifier: Apache-2.0
"""Small traces of StragglerAnalysis, as its profiler would write them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

GATHER, REDUCE, CLIP, OPTIMIZE = 0.5, 0.25, 0.125, 0.125  # seconds
STAGES = 2
_TYPES = {"dp_rank": "i1", "stage": "i1", "rank": "i2", "step": "i8", "start_ts": "f4",
          "duration": "f4", "seq_id": "i4", "mc": "i1", "mb_id": "i1", "gmc": "i2"}


def two_microbatches(workers, steps=(7,), told=True):
    """Rows of two stages that run two microbatches by 1F1B, messages of which take no time.

    @param workers  by (replica, stage): seconds of a forward and of a backward pass; a forward pass
                    on stage 0 takes no longer than both passes on stage 1
    @param told  whether ranks come to their sums at once, else when the slowest replica is done: of
                 what they do until then there is no row
    """
    replicas = 1 + max(replica for replica, _ in workers)
    return [row for step in steps for row in _step(workers, replicas, step, told)]


def _step(workers, replicas, step, told):
    rows, done = [], {}
    for replica in range(replicas):
        times = _passes(*workers[replica, 0], *workers[replica, 1])
        for stage, of_stage in enumerate(times):
            done[replica, stage] = max(end for _, _, end, _ in of_stage)
            counts = {}
            for optype, begin, end, microbatch in of_stage:
                number = counts[optype] = counts.get(optype, -1) + 1
                rows.append(_row(replica, replicas, stage, step, optype, begin, end, number,
                                 microbatch))
    reduced = {}
    for (replica, stage), end in done.items():
        both = max(done[replica, 0], done[replica, 1])
        everywhere = max(done.values())
        end, both = (end, both) if told else (everywhere, everywhere)
        reduced[replica, stage] = everywhere + REDUCE
        for optype, begin, over in (("params-all-gather", 0.0, GATHER), ("gc", end, end),
                                    ("layernorm-grads-all-reduce", end, end),
                                    ("embedding-grads-all-reduce", end, both),
                                    ("grads-reduce-scatter", both, everywhere + REDUCE)):
            rows.append(_row(replica, replicas, stage, step, optype, begin, over))
    last = max(reduced.values())
    for replica, stage in done:
        rows.append(_row(replica, replicas, stage, step, "optimizer-clip-main-grad",
                         reduced[replica, stage], last + CLIP))
        rows.append(_row(replica, replicas, stage, step, "optimizer", last + CLIP,
                         last + CLIP + OPTIMIZE))
    return rows


def _passes(f0, b0, f1, b1):
    """(optype, begin, end, microbatch) of each stage of a replica."""
    sent = [GATHER + f0, GATHER + 2 * f0]  # by stage 0
    first = sent[0] + f1 + b1  # backward passes of stage 1 end
    second = first + f1 + b1
    third = max(first + b0, second)  # the last backward pass of stage 0 begins
    front = [("forward-compute", GATHER, sent[0], 0), ("forward-compute", sent[0], sent[1], 1),
             ("forward-send", sent[0], sent[0], -1), ("forward-send", sent[1], first, -1),
             ("backward-recv", sent[1], first, -1), ("backward-recv", first, second, -1),
             ("backward-compute", first, first + b0, 0),
             ("backward-compute", third, third + b0, 1)]
    back = [("forward-recv", GATHER, sent[0], -1), ("forward-recv", first, first, -1),
            ("forward-compute", sent[0], sent[0] + f1, 0),
            ("forward-compute", first, first + f1, 1),
            ("backward-compute", sent[0] + f1, first, 0),
            ("backward-compute", first + f1, second, 1),
            ("backward-send", first, first, -1), ("backward-send", second, second, -1)]
    return front, back


def _row(replica, replicas, stage, step, optype, begin, end, number=0, microbatch=-1):
    computes = optype.endswith("-compute")
    return {"dp_rank": replica, "stage": stage, "rank": 2 * (stage * replicas + replica),
            "step": step, "optype": optype, "start_ts": begin, "duration": end - begin,
            "seq_id": number, "mc": 0 if computes else -1, "mb_id": microbatch,
            "gmc": stage if computes else -1}


def write(path: Path, rows, **columns) -> Path:
    """@param columns  others than the rows have, or None: left out"""
    made = {name: pa.array(np.array([row[name] for row in rows], kind))
            for name, kind in _TYPES.items()}
    made["optype"] = pa.array([row["optype"] for row in rows]).dictionary_encode()
    made |= columns
    table = pa.table({name: column for name, column in made.items() if column is not None})
    pyarrow.parquet.write_table(table, path)
    return path
