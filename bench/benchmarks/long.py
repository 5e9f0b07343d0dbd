# SPDX-License-Identifier: Apache-2.0
"""Training steps of one long document that ranks share, by kind of attention and length.

From inputs/attention/long.yaml; prints the table of docs/results/long.md: time of a step, share of
attention, MFU and peak memory by part of the largest rank. Models are not trained."""

import json
import shutil
from pathlib import Path

from lib import host, options, tables
from lib.command import call, metrics, mpirun, words_of
from lib.traces import peak_memory, ranks, seconds_of

ATTENTION = 1  # category of docs/trace.md
KINDS = {
    "full": [],
    "dual_chunk": ["attention.kind=dual_chunk", "attention.chunk=32768", "attention.local=4096"],
    "vertical_slash": ["attention.kind=vertical_slash", "attention.sparse.columns=1024",
                       "attention.sparse.slashes=256"],
    "xattention": ["attention.kind=xattention", "attention.sparse.threshold=0.09"],
}
PARTS = ("parameters", "gradients", "optimizer", "activations", "attention", "communication")


def settings(tokens, count, kind, steps):
    return [f"data.lengths.values=[{tokens}]", f"data.max_document={tokens}",
            f"batch.tokens={tokens}", f"batch.microbatch={tokens}", f"parallel.context={count}",
            f"run.steps={steps}", *KINDS[kind]]


def peaks(run):
    """Peak bytes of the rank with most memory: in all, and by part."""
    return max(peak_memory(run), key=lambda rank: rank[0])


def attention_share(run):
    """Of the last step, over all ranks."""
    times = []
    for steps, events, _ in ranks(run):
        last = steps["step"][-1]
        mine = events[(events["step"] == last) & (events["category"] == ATTENTION)]
        times.append(float(seconds_of(mine).sum() / seconds_of(steps[-1])))
    return sum(times) / len(times)


def row(chosen, kind, tokens):
    folder = chosen.output / f"{kind}-{tokens}"
    shutil.rmtree(folder, ignore_errors=True)
    experiment = host.ROOT / "inputs/attention/long.yaml"
    call([*mpirun(chosen.ranks, chosen.under),
          *words_of(chosen.program.resolve(), ["train", experiment, "--output", folder],
                    settings(tokens, chosen.ranks, kind, chosen.steps))])
    last = metrics(folder)[-1]
    total, parts = peaks(folder)
    return [kind, tokens, f"{last['seconds']:.1f}", f"{100 * attention_share(folder):.0f} %",
            "–" if "sparsity" in last else f"{100 * last['model_flops_utilization']:.0f} %",
            f"{100 * last.get('sparsity', 0):.1f} %", f"{total / 2**20:.0f}",
            *(f"{parts[part] / 2**20:.0f}" for part in PARTS)]


def parse(arguments):
    parser = options.parser("long", __doc__, "--program", "--under")
    parser.add_argument("--output", type=Path, default=host.ROOT / "build/bench-long",
                        metavar="DIR", help="the runs")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 65536, 131072],
                        metavar="S", help="lengths of the document")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS),
                        help="of attention")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="that share it")
    parser.add_argument("--steps", type=int, default=1, metavar="N",
                        help="of a run; the last one is shown")
    return parser.parse_args(arguments)


def main(arguments=None):
    chosen = parse(arguments)
    tables.show(f"{json.dumps(host.describe())}\n",
                tables.row(["kind", "tokens", "step, s", "attention", "MFU", "left out",
                            "peak, MiB", *PARTS]),
                tables.row(["---", *["---:"] * (6 + len(PARTS))]))
    for kind in chosen.kinds:
        for tokens in chosen.tokens:
            tables.show(tables.row(row(chosen, kind, tokens)))


if __name__ == "__main__":
    main()
