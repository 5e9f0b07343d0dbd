# SPDX-License-Identifier: Apache-2.0
"""The watch: looks, says what it sees, sleeps.

It sleeps so long that it takes no more than a thousandth of the processor time of the run, but half
a minute at most, and a fraction of a step at least.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from cadenza.errors import DataError
from cadenza.files import printable
from cadenza.watch import lines
from cadenza.watch.step import Feed, Step
from cadenza.watch.watcher import FAULT, LEARNT, Watcher
from cadenza.words import counted, seconds

_COSTS = 1e-3  # of the processor time of the run, the watch's own
_OF_STEP = 0.25  # of a step, how long it sleeps
_SHORTEST, _LONGEST = 0.2, 5.0  # seconds
_LONGEST_REST = 30.0  # seconds: a hang is not to be missed for the sake of costs
_HANG = 10.0  # usual steps without a new one
_LEAST_HANG = 10.0  # seconds
_FIRST = 300.0  # seconds until a first step must have come: start-up takes long
_HANG_GAPS = 3.0  # times the longest gap between two steps: checkpoints take long


@dataclass
class Found:
    """What a watch has seen."""

    steps: int = 0
    alarms: int = 0


class Watch:
    """@param every  steps of a verdict
    @param until_alarm  whether the first alarm ends the watch"""

    def __init__(self, feed: Feed, name: str, every: int, until_alarm: bool) -> None:
        self._feed, self._name = feed, name
        self._every, self._until_alarm = every, until_alarm
        self._watcher = Watcher(feed)
        self.found = Found()
        self._stretch: list[Step] = []
        self._told = False  # an alarm, in the stretch
        self._heard = time.monotonic()  # when the last step came
        self._hangs = self._waits = self._learnt = False
        self._longest_step = self._longest_gap = 0.0  # seconds
        self._before: Step | None = None

    def run(self) -> int:
        """@returns 1 where there was an alarm, else 0"""
        try:
            while self._look():
                pass
        finally:
            self._verdict()
            print(f"{self._name}: watched {counted(self.found.steps, 'step')}, "
                  f"{counted(self.found.alarms, 'alarm')}",
                  flush=True)
        return int(self.found.alarms > 0)

    @property
    def _usual(self) -> float:
        """Seconds of a step, as far as is known."""
        return self._watcher.seconds or self._longest_step

    @property
    def _over(self) -> bool:
        return self._until_alarm and self.found.alarms > 0

    def _look(self) -> bool:
        """One look, and a rest. @returns whether to go on"""
        begin = time.process_time()
        begun = self._feed.begun
        steps = self._feed.poll()
        if not begun and self._feed.begun:
            silent = max(time.time() - self._feed.written, 0.0)
            self._heard = time.monotonic() - (silent if self._feed.written else 0.0)
        for step in steps:
            self._step(step)
            if self._over:
                return False
        for rank, last in self._feed.silent():
            self._alarm(f"rank {rank} has written nothing since step {last}; continuing without it")
        if self._feed.ending is not None:
            return self._end()
        if not steps and not self._wait():
            return False
        if not self._feed.behind and not self._over:
            self._rest(time.process_time() - begin)
        return not self._over

    def _step(self, step: Step) -> None:
        if self._hangs:
            self._say(f"step {step.number}: the run goes on")
        self._longest_gap = max(self._longest_gap, _gap(self._before, step))
        self._before = step
        self._longest_step = max(self._longest_step, step.seconds)
        self._heard, self._hangs = time.monotonic(), False
        self.found.steps += 1
        self._stretch.append(step)
        for alarm in self._watcher.add(step):
            self._told = True
            self._alarm(f"step {step.number}: {lines.sentence_of(alarm, self._feed.ranks)}")
        if not self._learnt and self._watcher.seconds:
            self._learnt = True
            self._say(lines.learnt(self._watcher.seconds, *self._watcher.sees, FAULT))
            for one in self._watcher.standing():
                self._say(f"from the first step on: {lines.sentence_of(one, self._feed.ranks)}")
        if len(self._stretch) >= self._every:
            self._verdict()

    def _verdict(self) -> None:
        """About the steps since the last one."""
        if not self._stretch:
            return
        steps, self._stretch = self._stretch, []
        now = [lines.sentence_of(alarm, self._feed.ranks)
               for alarm in (*self._watcher.current(), *self._watcher.standing())]
        state = "healthy again" if self._told else "healthy"
        state, self._told = state if self._watcher.seconds else "not judged yet", False
        took = sum(step.seconds for step in steps) / len(steps)
        self._say(lines.stretch(steps[0].number, steps[-1].number, took, now, state))

    def _wait(self) -> bool:
        """Nothing new came. @returns whether something may still come"""
        if not self._feed.begun or not self.found.steps:
            if not self._waits:
                self._say("no complete step yet; waiting")
            self._waits = True
            if not self._feed.begun:
                return True
        silence = time.monotonic() - self._heard
        limit = max(_LEAST_HANG, (_HANG + self._feed.together - 1) * self._usual,
                    _HANG_GAPS * self._longest_gap)
        if silence < limit:
            return True
        left = self._feed.left
        if not self._hangs and (self.found.steps or left or silence > _FIRST):
            self._hangs = True
            why = "the run has ended without saying so: it was killed" if left else \
                "it hangs, or writes nothing"
            self._alarm(f"no step for {seconds(silence)}: {why}")
        return not left

    def _end(self) -> bool:
        how = self._feed.ending
        self._verdict()
        if how.startswith("ended by an error"):
            self._alarm(f"the run {how}")
        else:
            self._say(f"the run {how or 'has ended'}")
        if self.found.steps and not self._watcher.seconds:
            self._say(f"too few steps to judge any: that takes {LEARNT[0] + 1}")
        if not self.found.steps:
            raise DataError(f"{self._name}: no complete step in the trace")
        return False

    def _alarm(self, text: str) -> None:
        self.found.alarms += 1
        self._say(f"ALARM {text}")

    def _say(self, text: str) -> None:
        print(printable(text), flush=True)

    def _rest(self, used: float) -> None:
        """@param used  seconds of processor time that the look took"""
        step = self._usual or time.monotonic() - self._heard
        least = min(max(_OF_STEP * step, _SHORTEST), _LONGEST)
        time.sleep(min(max(least, used / (_COSTS * self._feed.processors)), _LONGEST_REST))


def _gap(before: Step | None, step: Step) -> float:
    """Seconds between two steps, each rank's on its own clock: the least."""
    if before is None or len(before.ranks) != len(step.ranks):
        return 0.0
    return min(one.begin_ns - other.end_ns
               for other, one in zip(before.each, step.each, strict=True)) / 1e9
