# SPDX-License-Identifier: Apache-2.0
"""What small models learn with every kind of attention.

They are trained on inputs/attention/retrieval.yaml and asked for facts in documents of the trained
length, twice and four times as long: the tables of docs/results/learning.md. Models that were
trained before are kept in the output folder."""

from pathlib import Path

from lib import options, tables
from lib.host import ROOT
from lib.models import Models, accuracy, left_out, spread

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


def named(label, models):
    share = left_out(models)
    return label if share is None else f"{label}, {100 * share:.0f} % left out"


class Bench:
    def __init__(self, arguments):
        self.models = Models(arguments.program, arguments.output, arguments.set)
        self.steps = arguments.steps
        self.seeds = range(1, arguments.seeds + 1)

    def model(self, number, settings, seed):
        return self.models.train(f"kind-{number}-{seed}", EXPERIMENT, [*settings, f"seed={seed}"],
                                 self.steps)

    def ask(self, model, name, settings, length):
        """Share of answers that are right in documents of `length` tokens that it never saw."""
        return accuracy(self.models.evaluate(
            model, f"{name}-{length}", EXPERIMENT,
            [*settings, f"data.lengths.median={length}", f"batch.tokens={ASKED}", "run.steps=1",
             "seed=1000"]))

    def row(self, label, cells):
        """@param cells  for each column, accuracies by seed"""
        tables.show(tables.row([label, *(spread(values, percent) for values in cells)]))


def percent(share):
    return f"{100 * share:.0f} %"


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
        bench.row(named(label, models),
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
