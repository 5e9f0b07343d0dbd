# SPDX-License-Identifier: Apache-2.0
"""What cadenza-analyze watch misses, says without reason, and costs.

Simulates runs of documents with a heavy tail (Pareto 1.1) and 3 % jitter of every operation: clean
ones, of which each alarm is false, and ones with a fault from some step on, of which an alarm is to
come within three steps where the fault costs 5 % of a step or more. With --cost, a real run of two
ranks is watched, and the processor times of both are compared."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.watch.cases import KINDS, PLACEMENTS, clean, fault, planted, simulate
from benchmarks.watch.cost import cost
from cadenza.watch.trace_feed import TraceFeed
from cadenza.watch.watcher import Watcher
from lib import options, tables

WORTH = 0.05  # of a step
SOON = 3  # steps


def alarms_of(run):
    """Each alarm with the step that showed it, and how many steps were watched."""
    feed = TraceFeed(run)
    watcher, found, steps = Watcher(feed), [], 0
    while feed.ending is None:
        for step in feed.poll():
            steps += 1
            found += [(step.number, alarm) for alarm in watcher.add(step)]
    return found, steps


def parse():
    parser = options.parser("watch", __doc__, "--program")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=100, metavar="SEED", help="the first")
    parser.add_argument("--steps", type=int, default=1000, help="of a clean run; 0: none")
    parser.add_argument("--ranks", type=lambda text: [int(one) for one in text.split(",")],
                        default=[4, 8, 16, 64], metavar="N,...")
    parser.add_argument("--placements", **options.choice(PLACEMENTS))
    parser.add_argument("--kinds", **options.choice(KINDS))
    parser.add_argument("--cost", type=int, metavar="STEPS",
                        help="measure only what the watch costs beside a real run of so many")
    return parser.parse_args()


def watch_clean(chosen, folder):
    """How many alarms there were."""
    tables.show(*tables.head(["clean: placement", "ranks", "steps watched", "alarms"]))
    total = Counter()
    for ranks in chosen.ranks:
        for placement in chosen.placements:
            for seed in range(chosen.first, chosen.first + chosen.seeds):
                case = clean(placement, ranks, seed, chosen.steps)
                found, steps = alarms_of(simulate(chosen.program, case, folder / "clean"))
                total.update(steps=steps, alarms=len(found))
                tables.show(tables.row([placement, ranks, steps, len(found)]))
                for at, alarm in found:
                    print(f"seed {seed}, step {at}: {alarm}", file=sys.stderr, flush=True)
    tables.show(tables.row(["**all**", "", total["steps"], total["alarms"]]))
    return total["alarms"]


def watch_faults(chosen, folder):
    """How many faults that cost enough were told late, not at all, or of others."""
    tables.show(*tables.head(["fault", "runs", "cost 5 % or more", "told within 3 steps",
                              "steps until told", "of the right rank and cause",
                              "cost less, told", "false alarms before it"]))
    wrong = 0
    for kind in chosen.kinds:
        count, delays = Counter(), []
        for ranks in chosen.ranks:
            for placement in chosen.placements:
                for seed in range(chosen.first, chosen.first + chosen.seeds):
                    if kind == "link" and placement == "colocated":
                        continue  # sums over all ranks show no single link
                    _one(chosen, fault(kind, placement, ranks, seed), folder, count, delays)
        wrong += count["worth"] - count["soon"] + count["early"]
        tables.show(tables.row([
            kind, count["runs"], count["worth"], count["soon"],
            ", ".join(f"{n}: {of}" for n, of in sorted(Counter(delays).items())),
            count["right"], f"{count['told less']} of {count['runs'] - count['worth']}",
            count["early"]]))
    return wrong


def _one(chosen, case, folder, count, delays):
    run, without, with_it = planted(chosen.program, case, folder)
    soon = slice(case.first, case.first + (1 if case.kind == "pause" else SOON))
    costs = 1 - without[soon].sum() / with_it[soon].sum()
    found, _ = alarms_of(run)
    early = [one for one in found if one[0] < case.first]
    after = [one for one in found if one[0] >= case.first]
    count.update(runs=1, early=len(early))
    if costs < WORTH:
        count.update({"told less": bool(after)})
        return
    delay = after[0][0] - case.first + 1 if after else 0
    delays.append(delay if after else "never")
    right = bool(after) and _right(case, after[0][1])
    count.update(worth=1, soon=0 < delay <= SOON, right=right)
    if early or not 0 < delay <= SOON or not right:
        print(f"{case}, which costs {costs:.1%}: {found}", file=sys.stderr, flush=True)


def _right(case, alarm):
    """Of a link a group that has both ends is right, too, where sums over the group alone show
    it."""
    if case.kind == "link":
        ends = {case.rank, (case.rank + 1) % case.ranks}
        return alarm.cause == "link" and (set(alarm.members) == ends or (
            ends <= set(alarm.members) and not any(link.message for link, _ in alarm.links)))
    members = set(range(case.ranks)) if case.kind == "all ranks" else {case.rank}
    causes = {"no core": "no core", "pause": "paused", "late start": "late start"}
    return set(alarm.members) == members and alarm.cause == causes.get(case.kind, "slow")


def main():
    chosen = parse()
    if chosen.cost:
        return cost(chosen.program, chosen.cost)
    with tempfile.TemporaryDirectory() as folder:
        wrong = watch_clean(chosen, Path(folder)) if chosen.steps else 0
        wrong += watch_faults(chosen, Path(folder))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
