# SPDX-License-Identifier: Apache-2.0
"""How far the simulator is from what was measured."""

import statistics

from lib import tables

STEP_TARGET = 0.05
CLASS_TARGET = 0.10
EQUAL = 0.01  # of simulated time: placements that compute the same
NOTABLE = 0.01  # of a step's computation: smaller classes are summed up, not judged


def error(simulated, measured):
    return simulated / measured - 1


def within(sizes, target):
    return sum(size <= target for size in sizes)


def percent(size):
    return f"{100 * size:.1f}"


def step_error(case):
    return error(case["simulated"]["seconds"], case["real"]["seconds"])


def steps(cases, mixes, placements):
    """Error of the step: placements x mixes."""
    lines = tables.head(["simulated / measured step − 1, %", *mixes])
    for placement in placements:
        cells = []
        for mix in mixes:
            case = cases.get(f"{mix}/{placement}", {})
            cells.append(f"{100 * step_error(case):+.1f}" if "real" in case
                         else case.get("error", "–"))
        lines.append(tables.row([placement, *cells]))
    return lines


def of_mix(cases, mix):
    """Those that ran."""
    return [case for name, case in cases.items()
            if "real" in case and name.rpartition("/")[0] == mix]


def noise(cases, mix):
    """How far real steps of equal work are apart at most: what no simulator can be better than."""
    runs = sorted((case["simulated"]["seconds"], case["real"]["seconds"])
                  for case in of_mix(cases, mix))
    worst = 0.0
    for begin, (least, _) in enumerate(runs):
        alike = [real for found, real in runs[begin:] if found <= (1 + EQUAL) * least]
        worst = max(worst, max(alike) / min(alike) - 1)
    return worst


def calm(cases, mixes):
    """By mix: steps within the target, and how noisy the machine was."""
    lines = tables.head(["mix", f"steps within {100 * STEP_TARGET:.0f} %", "median, %",
                         "largest, %", "real steps of equal work apart by, %"])
    for mix in mixes:
        sizes = [abs(step_error(case)) for case in of_mix(cases, mix)]
        if not sizes:
            continue
        lines.append(tables.row([mix, f"{within(sizes, STEP_TARGET)} of {len(sizes)}",
                                 percent(statistics.median(sizes)), percent(max(sizes)),
                                 percent(noise(cases, mix))]))
    return lines


def class_errors(cases):
    """By class: (error, share of the run's computation) of every run."""
    found = {}
    for case in cases.values():
        if "real" not in case:
            continue
        real, simulated = case["real"]["classes"], case["simulated"]["classes"]
        whole = sum(real.values())
        for name, seconds in real.items():
            found.setdefault(name, []).append(
                (error(simulated.get(name, 0.0), seconds), seconds / whole))
    return found


def classes(cases):
    lines = tables.head(["class of operation", "share of computation, %", "median error, %",
                         "largest error, %", f"within {100 * CLASS_TARGET:.0f} %"])
    for name, errors in sorted(class_errors(cases).items(),
                               key=lambda item: -statistics.mean(share for _, share in item[1])):
        sizes = [abs(one) for one, _ in errors]
        lines.append(tables.row([
            name, f"{100 * statistics.mean(share for _, share in errors):.2f}",
            percent(statistics.median(sizes)), percent(max(sizes)),
            f"{within(sizes, CLASS_TARGET)} of {len(sizes)}"]))
    return lines


def judged(sizes, target):
    return (f"{within(sizes, target)} of {len(sizes)}, median "
            f"{percent(statistics.median(sizes))} %, largest {percent(max(sizes))} %")


def verdict(cases):
    """One line a target."""
    sizes = [abs(step_error(case)) for case in cases.values() if "real" in case]
    if not sizes:
        return ["nothing was run"]
    notable = [abs(one) for errors in class_errors(cases).values() for one, share in errors
               if share >= NOTABLE]
    return [f"steps within {100 * STEP_TARGET:.0f} %: {judged(sizes, STEP_TARGET)}",
            f"classes with at least {100 * NOTABLE:.0f} % of a run's computation within "
            f"{100 * CLASS_TARGET:.0f} %: {judged(notable, CLASS_TARGET)}"]
