# SPDX-License-Identifier: Apache-2.0
"""What sparse attention takes and gets back.

From the traces of short runs. First one rank and one document: the attention of a layer, dense and
sparse, and how much of it is the choice of the index. Then ranks that share one long and many short
documents: CAD beside sparse rings. Bound: the sum over layers and passes of the slowest rank over
the sum of the mean, the index included. Prints tables for docs/results/sparse.md. The models are
not trained: attention is spread evenly, so that the threshold of xattention is about the share that
it keeps."""

import statistics
from collections import defaultdict
from pathlib import Path

import yaml

from lib import options, tables
from lib.command import call, metrics, mpirun, words_of
from lib.host import ROOT
from lib.traces import BACKWARD, FORWARD, ranks, seconds_of

PLACEMENTS = {
    "CAD": {"placement": "cad"},
    "balanced sparse ring": {"placement": "block_striped", "block": 128},
    # MTraining's, for nodes of two ranks; on two ranks it is the flat one.
    "balanced hierarchical ring": {"placement": "block_striped", "block": 128, "inner_ring": 2},
    "striped ring": {"placement": "striped"},
    "zigzag ring": {"placement": "zigzag"},
    "ring": {"placement": "ring"},
}
LENGTHS = [16384, 1024, 512, 2048, 1024, 3072, 4096, 4608]  # one long document, then short ones


def experiment(lengths, ranks, attention, steps, layers=2, heads=4):
    tokens = sum(lengths)
    return {
        "name": "sparse",
        "model": {"layers": layers, "d_model": 128 * heads, "heads": heads, "kv_heads": heads // 2,
                  "ffn": 512, "vocab": 259},
        "data": {
            "source": "synthetic",
            "documents": 64,
            "max_document": tokens,
            "lengths": {"distribution": "list", "values": lengths},
        },
        "batch": {"tokens": tokens, "microbatch": tokens},
        "parallel": {"context": ranks},
        "attention": attention,
        "run": {"steps": steps},
    }


def sparse(chosen, kind, longest, **more):
    """Budgets that leave out about 90 % of a document of `longest` tokens, whatever it holds."""
    if kind == "xattention":
        keys = {"threshold": chosen.threshold, "stride": chosen.stride}
    else:
        keys = {"block": chosen.block, "columns": longest // 64, "slashes": 2 + longest // 3300,
                "sinks": 16, "window": 2}
    return {"kind": kind, "sparse": {**keys, "dense_below": 4096}, **more}


def train(chosen, name, contents, count):
    """The folder of a run on `count` ranks."""
    folder = chosen.output / name
    folder.mkdir(parents=True, exist_ok=True)
    experiment = folder / "experiment.yaml"
    experiment.write_text(yaml.safe_dump(contents))
    call([*mpirun(count), *words_of(chosen.program.resolve(),
                                    ["train", experiment, "--output", folder / "run"])])
    return folder / "run"


def seconds_by_step(run):
    """For every rank {step: {(name, phase, layer): seconds}} of attention and of whole steps."""
    found = []
    for steps, events, names in ranks(run):
        mine = defaultdict(lambda: defaultdict(float))
        for event in events:
            name = names[event["name_id"]]
            if name in ("attend", "estimate"):
                key = name, int(event["phase"]), int(event["layer"])
                mine[int(event["step"])][key] += seconds_of(event)
        for step in steps:
            mine[int(step["step"])]["step", 0, 0] = seconds_of(step)
        found.append(mine)
    return found


def sparsity(run):
    return statistics.median(step.get("sparsity", 0.0) for step in metrics(run)[1:])


def median(steps, *names_and_passes):
    """Over all steps but the first, of all layers."""
    return statistics.median(
        sum(t for (name, phase, _), t in steps[step].items() if (name, phase) in names_and_passes)
        for step in sorted(steps)[1:]
    )


def print_index(chosen):
    tables.show(tables.row(["kind", "tokens", "left out", "index / dense forward",
                            "sparse forward and backward, index included"]),
                tables.row(["---", *["---:"] * 4]))
    passes = [("attend", FORWARD), ("attend", BACKWARD)]

    def run(name, tokens, attention):
        contents = experiment([tokens], 1, attention, 1 + chosen.repeat, layers=1, heads=2)
        return train(chosen, f"{name}-{tokens}", contents, 1)

    for tokens in chosen.tokens:
        dense_run = run("dense", tokens, {"kind": "full", "placement": "colocated"})
        dense = seconds_by_step(dense_run)[0]
        for kind in chosen.kinds:
            sparse_run = run(kind, tokens, sparse(chosen, kind, tokens, placement="colocated"))
            kept = seconds_by_step(sparse_run)[0]
            index = median(kept, ("estimate", FORWARD)) / median(dense, ("attend", FORWARD))
            faster = median(dense, *passes) / median(kept, *passes, ("estimate", FORWARD))
            tables.show(tables.row([kind, tokens, f"{100 * sparsity(sparse_run):.1f} %",
                                    f"{100 * index:.2f} %", f"{faster:.1f} times as fast"]))


def bound(by_rank, step):
    """The slowest rank over the mean, of every layer and pass, added up."""
    work = defaultdict(lambda: [0.0] * len(by_rank))
    for rank, steps in enumerate(by_rank):
        for (name, phase, layer), seconds in steps[step].items():
            if name != "step":
                work[phase, layer][rank] += seconds
    slowest = sum(max(of) for of in work.values())
    return slowest / sum(sum(of) / len(of) for of in work.values())


def print_placements(chosen):
    tables.show(*tables.head(["kind", "ranks", "placement", "left out",
                              "attention: slowest rank over mean", "step", "over CAD",
                              "dense step over it"]))
    for count in chosen.ranks:
        dense, cells = step_of(chosen, "full", "CAD", count)
        tables.show(tables.row(["full", count, "CAD", *cells, "1.00", "1.00"]))
        for kind in chosen.kinds:
            first = None
            for name, keys in PLACEMENTS.items():
                if keys.get("inner_ring", 1) >= count:
                    continue
                seconds, cells = step_of(chosen, kind, name, count)
                first = first or seconds
                tables.show(tables.row([kind, count, name, *cells, f"{seconds / first:.2f}",
                                        f"{dense / seconds:.2f}"]))


def step_of(chosen, kind, name, count):
    """The median step of a run, s, and what the table shows of it."""
    keys = PLACEMENTS[name]
    attention = (keys if kind == "full" else sparse(chosen, kind, max(LENGTHS), **keys))
    contents = experiment(LENGTHS, count, attention, chosen.steps)
    run = train(chosen, f"{kind}-{name.replace(' ', '_')}-{count}", contents, count)
    steps = seconds_by_step(run)
    counted = sorted(steps[0])[2:]  # the first two are planned without counts
    seconds = statistics.median(steps[0][step]["step", 0, 0] for step in counted)
    unequal = statistics.median(bound(steps, step) for step in counted)
    return seconds, [f"{100 * sparsity(run):.1f} %", f"{unequal:.3f}", f"{seconds:.2f} s"]


def parse():
    parser = options.parser("sparse", __doc__, "--program")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench-sparse", metavar="DIR",
                        help="the runs")
    parser.add_argument("--tokens", type=int, nargs="*", default=[16384, 65536], metavar="S",
                        help="lengths of the one document")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], metavar="N",
                        help="numbers of ranks that share documents")
    parser.add_argument("--kinds", nargs="*", default=["vertical_slash", "xattention"],
                        metavar="KIND", help="attention.kind")
    parser.add_argument("--steps", type=int, default=7, metavar="N", help="of a run of many ranks")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="steps of one document")
    parser.add_argument("--block", type=int, default=64, help="of vertical_slash")
    parser.add_argument("--stride", type=int, default=16, help="of xattention")
    parser.add_argument("--threshold", type=float, default=0.09, help="of xattention")
    return parser.parse_args()


def main():
    chosen = parse()
    if chosen.tokens:
        print_index(chosen)
    if chosen.ranks:
        print_placements(chosen)


if __name__ == "__main__":
    main()
