# SPDX-License-Identifier: Apache-2.0
"""Measuring one case: prepare its sides, warm up, alternate, keep every sample."""

import math
import os
import statistics

from lib.sampling import alternate

LIMIT_SHARE = 0.1  # of the other sides' time that measuring the limit may take
LIMIT_MOST = 9  # products of a sample of the limit, which is their median


class Prepared:
    """A side whose work is prepared in its process."""

    def __init__(self, programs, name, side, threads):
        self.name, self.side = name, side
        self.own = programs.start(side.program, threads) if side.own_process else None
        self.process = self.own or programs.shared(side.program, threads)
        self.report = {}
        try:
            self.flops = self.process.ask({"prepare": name, "work": side.work})["flops"]
        except BaseException:
            self.close()
            raise

    def repeat(self):
        answer = self.process.ask({"run": self.name})
        self.report = {key: value for key, value in answer.items() if key != "seconds"}
        return answer["seconds"]

    def close(self):
        if self.own:
            self.own.close()
        elif self.process.alive():
            self.process.ask({"release": self.name})


class Limit(Prepared):
    """The limit is chosen once per process and sampled for a while: it is short."""

    def __init__(self, programs, side, threads):
        self.name = f"limit {side.work['dtype']}"
        self.process = programs.shared(side.program, threads)
        self.report = {}
        self.seconds = 0.0  # that a sample may take
        if self.name not in self.process.kept:
            answer = self.process.ask({"prepare": self.name, "work": side.work})
            self.process.kept[self.name] = answer["flops"]
        self.flops = self.process.kept[self.name]

    def repeat(self):
        samples = [super().repeat()]
        while len(samples) < LIMIT_MOST and sum(samples) < self.seconds:
            samples.append(super().repeat())
        return statistics.median(samples)

    def close(self):
        pass


def prepare(programs, case):
    prepared = {}
    try:
        for name, side in case.sides.items():
            kind = Limit if name == "limit" else Prepared
            arguments = (side,) if name == "limit" else (name, side)
            prepared[name] = kind(programs, *arguments, case.threads)
    except BaseException:
        for side in prepared.values():
            side.close()
        raise
    return prepared


def measure(programs, case):
    """The record of a case: for each side its FLOPs, its seconds, what it reports of itself."""
    prepared = prepare(programs, case)
    try:
        warm = [side.repeat() for name, side in prepared.items() if name not in case.cold]
        if "limit" in prepared:
            prepared["limit"].seconds = LIMIT_SHARE * max(warm, default=math.inf)
        repeats = {name: side.repeat for name, side in prepared.items()}
        samples = alternate(repeats, case.most, case.budget, case.rivals)
        sides = {
            name: {"flops": side.flops, "seconds": samples[name], "report": side.report}
            for name, side in prepared.items()
        }
    finally:
        for side in prepared.values():
            side.close()
    return {"name": case.name, "threads": case.threads, "shape": case.shape, "sides": sides,
            "load": os.getloadavg()}
