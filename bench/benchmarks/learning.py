# SPDX-License-Identifier: Apache-2.0
"""What small models learn with every kind of attention.

They are trained on inputs/attention/retrieval.yaml and asked for facts in documents of the trained
length, twice and four times as long: the tables of docs/results/learning.md. Models that were
trained before are kept in the output folder."""

import shutil
import sys
from pathlib import Path

from lib import options, tables
from lib.command import call, metrics, words_of
from lib.host import ROOT

EXPERIMENT = ROOT / "inputs/attention/retrieval.yaml"
TRAINED = 128  # tokens of a document
ASKED = 65536  # tokens of documents that a model is asked about

KINDS = {
    "full": [],
    "window, 32 tokens": ["attention.kind=window", "attention.window=32"],
    "window, 32 tokens, 4 sinks": ["attention.kind=window", "attention.window=32",
                                   "attention.sinks=4"],
    "dual_chunk, chunk 64, local 16": ["attention.kind=dual_chunk", "attention.chunk=64",
                                       "attention.local=16"],
    "vertical_slash, 16 columns, 2 slashes, blocks of 8": [
        "attention.kind=vertical_slash", "attention.sparse.block=8", "attention.sparse.columns=16",
        "attention.sparse.slashes=2", "attention.sparse.sinks=0", "attention.sparse.window=1",
        "attention.sparse.dense_below=0"],
}
CHUNKS = ["attention.kind=dual_chunk", f"attention.chunk={TRAINED}",
          f"attention.local={TRAINED // 4}"]


def scaled(kind, factor):
    keys = {"kind": kind, "factor": factor}
    if kind == "yarn":
        keys["original_context"] = TRAINED
    return [f"model.rope.scaling.{key}={value}" for key, value in keys.items()]


def left_out(models):
    """What sparse attention has left out of the causal pairs at the end of training."""
    shares = [metrics(model)[-1].get("sparsity") for model in models]
    return "" if None in shares else f", {100 * sum(shares) / len(shares):.0f} % left out"


class Bench:
    def __init__(self, arguments):
        self.program = arguments.program.resolve()
        self.output = arguments.output
        self.steps = arguments.steps
        self.layers = arguments.set
        self.seeds = range(1, arguments.seeds + 1)

    def train(self, name, settings, more=()):
        """The run's folder; `more` are words of the command line."""
        folder = self.output / name
        done = folder / "done"
        words = words_of(self.program, ["train", EXPERIMENT, "--output", folder, *more],
                         [*self.layers, "parallel.data=1", "trace.events=false", *settings])
        command = "\n".join(words)
        if not done.exists() or done.read_text() != command:
            print(name, file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            call(words, threads=None, timeout=None)
            done.write_text(command)
        return folder

    def model(self, number, settings, seed):
        return self.train(f"kind-{number}-{seed}",
                          [*settings, f"seed={seed}", f"run.steps={self.steps}",
                           f"run.checkpoint.every={self.steps}"])

    def ask(self, model, name, settings, length):
        """Share of answers that are right in documents of `length` tokens that it never saw. The
        model is asked before the step changes it."""
        folder = self.train(
            f"{model.name}-{name}-{length}",
            [*settings, f"data.lengths.median={length}", f"batch.tokens={ASKED}",
             f"run.steps={self.steps + 1}", "optimizer.lr=1e-9", "seed=1000",
             "run.checkpoint.every=0"],
            ["--from", str(model)])
        last = metrics(folder)[-1]
        return last["hits"] / last["answers"]

    def row(self, label, cells):
        """@param cells  for each column, accuracies by seed"""
        shown = []
        for values in cells:
            ordered = sorted(values)
            middle = f"{100 * ordered[len(ordered) // 2]:.0f} %"
            spread = f" ({100 * ordered[0]:.0f} – {100 * ordered[-1]:.0f})"
            shown.append(middle + (spread if len(ordered) > 1 else ""))
        tables.show(tables.row([label, *shown]))


def parse():
    parser = options.parser("learning", __doc__, "--program")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench-learning",
                        metavar="DIR", help="the models")
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="of training")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="models of each kind")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="of the experiment, for all models")
    return parser.parse_args()


def main():
    bench = Bench(parse())
    tables.show(*tables.head(["trained and asked with", "right answers"]))
    for number, (label, settings) in enumerate(KINDS.items()):
        models = [bench.model(number, settings, seed) for seed in bench.seeds]
        bench.row(label + left_out(models),
                  [[bench.ask(model, "same", settings, TRAINED) for model in models]])
    lengths = [TRAINED, 2 * TRAINED, 4 * TRAINED]
    tables.show("", *tables.head(["trained with full, asked with",
                                  *(f"{n} tokens" for n in lengths)]))
    models = [bench.model(0, [], seed) for seed in bench.seeds]
    bench.row("full", [[bench.ask(m, "same", [], n) for m in models] for n in lengths])
    bench.row("dual_chunk, chunk 128, local 32",
              [[bench.ask(m, "chunks", CHUNKS, n) for m in models] for n in lengths])
    for kind in ("linear", "yarn"):
        bench.row(f"full, {kind} scaling by the length",
                  [[bench.ask(m, kind if n > TRAINED else "same",
                              scaled(kind, n // TRAINED) if n > TRAINED else [], n)
                    for m in models] for n in lengths])


if __name__ == "__main__":
    main()
