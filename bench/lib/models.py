# SPDX-License-Identifier: Apache-2.0
"""Small models that are trained once and kept, and what `cadenza evaluate` says of them."""

import json
import shutil
import statistics
import sys

from lib.command import call, metrics, words_of


class Models:
    """A folder of runs of one rank. A run that has ended is not repeated by the same command."""

    def __init__(self, program, output, settings=()):
        """@param settings  KEY=VALUE of all runs, below those of each"""
        self.program = program.resolve()
        self.output = output
        self.settings = ["parallel.data=1", "trace.events=false", *settings]

    def train(self, name, experiment, settings, steps, start=None):
        """The folder of a model after `steps` steps, those of `start`, a trained one, included."""
        settings = [*settings, f"run.steps={steps}", f"run.checkpoint.every={steps}"]
        return self._run("train", name, experiment, settings, start)

    def evaluate(self, model, name, experiment, settings):
        """evaluation.json of a model; `name` says on what, and names its folder."""
        folder = self._run("evaluate", f"{model.name}-{name}", experiment, settings, model)
        return json.loads((folder / "evaluation.json").read_text())

    def _run(self, command, name, experiment, settings, start):
        folder = self.output / name
        done = folder / "done"
        source = ["--from", start] if start else []
        words = words_of(self.program, [command, experiment, "--output", folder, *source],
                         [*self.settings, *settings])
        line = "\n".join(words)
        if not done.exists() or done.read_text() != line:
            print(name, file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            call(words, threads=None, timeout=None)
            done.write_text(line)
        return folder


def accuracy(evaluation):
    """The share of questions that are answered right."""
    return evaluation["right"] / evaluation["questions"]


def left_out(models):
    """The mean share of the causal pairs that sparse attention left out in the last steps; None
    where no attention was sparse."""
    shares = [metrics(model)[-1].get("sparsity") for model in models]
    return None if None in shares else statistics.mean(shares)


def spread(values, shown):
    """"middle (smallest – largest)"; `shown` formats a number."""
    text = shown(statistics.median(values))
    return text + (f" ({shown(min(values))} – {shown(max(values))})" if len(values) > 1 else "")
