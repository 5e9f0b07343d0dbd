# SPDX-License-Identifier: Apache-2.0
"""What dense models keep when they are continued with sparse attention, at four times the length.

As MTraining uses it (arXiv 2510.18830): small models are trained with full attention, then
continued with each kind on documents four times as long, with YaRN scaling, on two tasks: facts to
be found (inputs/attention/retrieval.yaml) and text (the sources of Python's standard library). And
from scratch: schedules from dense to sparse. The tables of docs/results/learning.md. Models that
were trained before are kept in the output folder."""

import statistics
import sysconfig
from pathlib import Path

from lib import options, tables
from lib.command import metrics
from lib.host import ROOT
from lib.models import Models, accuracy, left_out, spread

EXPERIMENT = ROOT / "inputs/attention/retrieval.yaml"
LIBRARY = sysconfig.get_path("stdlib")
FACTOR = 4  # the continued length over the trained one
LEARNT = ("unittest", "distutils", "lib2to3", "tkinter", "xml", "ctypes", "multiprocessing",
          "importlib", "idlelib")
HELD_OUT = ("asyncio", "email", "http", "urllib", "logging")


def sources(packages, *more):
    return f"data.path=[{','.join([*more, *(f'{LIBRARY}/{name}/**/*.py' for name in packages)])}]"


def sparse(kind, block, **keys):
    return [f"attention.kind={kind}", f"attention.sparse.block={block}",
            *(f"attention.sparse.{key}={value}" for key, value in keys.items())]


def refreshed(settings, every):
    return [*settings, f"attention.sparse.refresh={every}"]


class Task:
    """What is trained, continued and asked.

    @param length  trained tokens of a document
    @param steps   (trained, continued)
    """

    def __init__(self, name, length, steps, settings, longer, asked, kinds):
        self.name, self.length, self.steps, self.kinds = name, length, steps, kinds
        self.trained = [f"name={name}", *settings, *self.of_length(length)]
        yarn = [f"model.rope.scaling.{key}={value}" for key, value in
                (("kind", "yarn"), ("factor", FACTOR), ("original_context", length))]
        self.continued = [f"name={name}", *settings, *longer, *self.of_length(FACTOR * length),
                          "optimizer.lr=3e-4", "optimizer.warmup=0", *yarn]
        self.asked = [*self.continued, *asked]


class Retrieval(Task):
    @staticmethod
    def of_length(length):
        return [f"data.lengths.median={length}"]


class Text(Task):
    @staticmethod
    def of_length(length):
        return [f"data.max_document={length}"]


SLASHES = sparse("vertical_slash", 8, columns=64, slashes=8, sinks=1, window=2, dense_below=0)
TEXT_SLASHES = sparse("vertical_slash", 16, columns=384, slashes=64, sinks=4, window=32,
                      dense_below=512)
RETRIEVAL = Retrieval(
    "retrieval", 128, (1000, 300), [], [],
    ["data.lengths.distribution=list", "data.lengths.values=[128,256,512]", "batch.tokens=65536",
     "batch.microbatch=4096", "run.steps=4"],
    {"full": [],
     "vertical_slash": SLASHES,
     "vertical_slash, refresh 10": refreshed(SLASHES, 10),
     "vertical_slash, refresh 0": refreshed(SLASHES, 0),
     "xattention": sparse("xattention", 8, stride=1, threshold=0.8, dense_below=0)})
TEXT = Text(
    "text", 512, (1500, 200),
    ["model.layers=3", "model.ffn=352", "model.vocab=259", "data.source=text", "data.shuffle=true",
     "batch.microbatch=4096", sources(LEARNT, f"{LIBRARY}/*.py"), "optimizer.warmup=100"],
    ["batch.tokens=8192", "batch.microbatch=8192"],
    [sources(HELD_OUT), "data.shuffle=false", "run.steps=60"],
    {"full": [],
     "vertical_slash": TEXT_SLASHES,
     "vertical_slash, refresh 10": refreshed(TEXT_SLASHES, 10),
     "vertical_slash, refresh 0": refreshed(TEXT_SLASHES, 0),
     "xattention": sparse("xattention", 16, stride=1, threshold=0.87, dense_below=512),
     "xattention, stride 2": sparse("xattention", 16, stride=2, threshold=0.87, dense_below=512)})
TASKS = {task.name: task for task in (RETRIEVAL, TEXT)}

# From scratch on 128 tokens, with 69 % of the pairs left out at the end, or 60 %.
GENTLE = sparse("vertical_slash", 8, columns=32, slashes=2, sinks=0, window=1, dense_below=0)
HARSH = sparse("vertical_slash", 8, columns=16, slashes=2, sinks=0, window=1, dense_below=0)
SHRINKING = [{"columns": 128, "slashes": 16}, {"columns": 64, "slashes": 8},
             {"columns": 32, "slashes": 4}, {"columns": 16, "slashes": 2}]
SCHEDULES = {  # settings by phase; each phase takes an equal part of the steps
    "sparse from the first step": [HARSH],
    "dense for the first half (dense_steps)": [[*HARSH, "attention.sparse.dense_steps={half}"]],
    "first layer full": [[*HARSH, "attention.layers=[full, vertical_slash]"]],
    "budgets that shrink in four phases": [
        [*HARSH, "optimizer.schedule=constant",
         *(f"attention.sparse.{key}={value}" for key, value in budget.items())]
        for budget in SHRINKING],
    "dense for the first half, then 32 columns": [
        [*GENTLE, "attention.sparse.dense_steps={half}"]],
    "32 columns from the first step": [GENTLE],
}


def recall(models):
    """Of the last quarter of the steps, which sample all layers in turn."""
    shares = [statistics.mean(step["recall"] for step in steps[-max(1, len(steps) // 4):])
              for steps in map(metrics, models)]
    return spread(shares, percent)


def percent(share):
    return f"{100 * share:.1f} %"


class Bench:
    def __init__(self, arguments):
        self.models = Models(arguments.program, arguments.output, arguments.set)
        self.seeds = range(1, arguments.seeds + 1)
        self.shorter = arguments.shorter
        self.plot = arguments.plot

    def steps(self, count):
        return max(1, count // self.shorter)

    def evaluate(self, model, settings):
        look = ["run.steps=1", "batch.tokens=8192"] if self.shorter > 1 else []
        return self.models.evaluate(model, "asked", EXPERIMENT, [*settings, *look, "seed=1000"])

    def continue_with(self, task):
        """Trains dense models, continues each with every kind, asks it; a row of each kind."""
        dense, more = map(self.steps, task.steps)
        curves = {}
        answers = "answers right" if task is RETRIEVAL else "over full"
        tables.show("", f"{task.name}: {task.length} to {FACTOR * task.length} tokens", "",
                    *tables.head(["continued with", "left out", "recall", "loss", answers]))
        trained = [self.models.train(f"{task.name}-{seed}", EXPERIMENT,
                                     [*task.trained, f"seed={seed}"], dense)
                   for seed in self.seeds]
        losses = {}
        for number, (label, settings) in enumerate(task.kinds.items()):
            models = [self.models.train(f"{model.name}-kind-{number}", EXPERIMENT,
                                        [*task.continued, *settings, f"seed={100 + seed}"],
                                        dense + more, model)
                      for seed, model in zip(self.seeds, trained, strict=True)]
            asked = [self.evaluate(model, [*task.asked, *settings]) for model in models]
            losses[label] = [each["loss"] for each in asked]
            curves[label] = [metrics(model) for model in models]
            last = spread(list(map(accuracy, asked)), percent) if task is RETRIEVAL else spread(
                [a / b - 1 for a, b in zip(losses[label], losses["full"], strict=True)],
                lambda share: f"{100 * share:+.2f} %")
            kept = [f"{100 * left_out(models):.0f} %", recall(models)] if settings else ["–", "–"]
            tables.show(tables.row([label, *kept,
                                    spread(losses[label], "{:.4f}".format), last]))
        if self.plot:
            draw(curves, f"{task.name}, continued at {FACTOR} times its length",
                 self.plot / f"{task.name}.svg")

    def from_scratch(self):
        total = max(self.steps(RETRIEVAL.steps[0]), len(SHRINKING))  # a step of each phase
        tables.show("", *tables.head(["from scratch, vertical_slash", "left out", "right answers"]))
        for number, (label, phases) in enumerate(SCHEDULES.items()):
            rights, models = [], []
            for seed in self.seeds:
                model = None
                for phase, settings in enumerate(phases):
                    settings = [setting.format(half=total // 2) for setting in settings]
                    model = self.models.train(
                        f"schedule-{number}-{seed}-{phase}", EXPERIMENT,
                        [*RETRIEVAL.trained, *settings, f"seed={seed}"],
                        total * (phase + 1) // len(phases), model)
                models.append(model)
                rights.append(accuracy(self.evaluate(
                    model, [*RETRIEVAL.trained, *settings, "batch.tokens=65536", "run.steps=1"])))
            tables.show(tables.row([label, f"{100 * left_out(models):.0f} %",
                                    spread(rights, percent)]))


PANELS = {  # what is drawn by step: of a step and the same one of the first kind
    "loss, nats a token": lambda step, dense: step["loss"],
    "loss above full": lambda step, dense: step["loss"] - dense["loss"],
    "recall": lambda step, dense: step.get("recall"),
    "right answers": lambda step, dense: step["hits"] / step["answers"] if "hits" in step else None,
}


def draw(curves, title, path):
    """The means of the seeds, each smoothed over some steps, and their range.

    @param curves  by kind, full first: of each seed, its metrics
    """
    import matplotlib  # the analysis' environment has it; only --plot needs it

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    pyplot.style.use("tableau-colorblind10")
    dense = next(iter(curves.values()))
    panels = {}
    for name, value in PANELS.items():
        for label, seeds in curves.items():
            drawn = [[value(*pair) for pair in zip(*pairs, strict=True)]
                     for pairs in zip(seeds, dense, strict=True)]
            if None not in drawn[0]:
                panels.setdefault(name, {})[label] = drawn
    figure, all_axes = pyplot.subplots(len(panels), sharex=True, figsize=(7, 2.4 * len(panels)))
    for axes, (name, lines) in zip(all_axes, panels.items(), strict=True):
        axes.set_ylabel(name)
        for label, seeds in lines.items():
            draw_line(axes, seeds, label, f"C{list(curves).index(label)}")
    all_axes[0].set_title(title)
    all_axes[0].legend(fontsize=8)
    all_axes[-1].set_xlabel("step after the change")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")


def draw_line(axes, seeds, label, color):
    window = max(1, len(seeds[0]) // 15)
    smooth = [[statistics.mean(losses[max(0, i - window):i + 1]) for i in range(len(losses))]
              for losses in seeds]
    steps = range(1, len(seeds[0]) + 1, max(1, len(seeds[0]) // 60))
    columns = [[losses[step - 1] for losses in smooth] for step in steps]
    axes.plot(steps, [statistics.mean(column) for column in columns], label=label, color=color)
    axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.15,
                      color=color)


def parse():
    parser = options.parser("continued", __doc__, "--program")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench-continued",
                        metavar="DIR", help="the models")
    parser.add_argument("--tasks", **options.choice([*TASKS, "schedules"]))
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="models of each kind")
    parser.add_argument("--shorter", type=int, default=1, metavar="N",
                        help="divides the steps: a look at models that have learnt little")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw losses by step into DIR")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="of the experiment, for all models")
    return parser.parse_args()


def main():
    arguments = parse()
    bench = Bench(arguments)
    for name, task in TASKS.items():
        if name in arguments.tasks:
            bench.continue_with(task)
    if "schedules" in arguments.tasks:
        bench.from_scratch()


if __name__ == "__main__":
    main()
