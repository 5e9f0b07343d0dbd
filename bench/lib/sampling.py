# SPDX-License-Identifier: Apache-2.0
"""Alternating repetitions of several programs, and the statistics of what they took.

The machines are shared and their speed drifts: only times taken right after one another compare.
So every round runs each side once, in turning order, and ratios are taken within rounds."""

import math
import statistics
import time

SETTLE = 0.005  # s between repetitions, in which the other program's threads stop spinning
LONG = 15.0  # s; a round this long is repeated less
DROPPED = 1.10  # a rival so much slower than the best in the first round is left out of the rest


def turn(number, sides):
    """The order of a round: there and back."""
    return list(sides)[:: -1 if number % 2 else 1]


def alternate(sides, most, budget=math.inf, rivals=()):
    """`sides`: name -> function that does one repetition and returns its seconds. There are at most
    `most` rounds, fewer where `budget` seconds are spent, but at least 3 (2 of long ones). `rivals`
    are sides of which only the fastest matters. Returns name -> seconds of every round, None where
    left out."""
    samples = {name: [] for name in sides}
    active = list(sides)
    rounds, taken = most, 0
    while taken < rounds:
        begin = time.monotonic()
        for name in turn(taken, active):
            time.sleep(SETTLE)
            samples[name].append(sides[name]())
        for name in samples.keys() - set(active):
            samples[name].append(None)
        spent = time.monotonic() - begin
        taken += 1
        if taken == 1:
            least = 2 if spent > LONG else 3
            rounds = max(min(least, most), round(min(most, budget / spent)))
            best = min((samples[name][0] for name in rivals), default=0)
            slow = [name for name in rivals if samples[name][0] > DROPPED * best]
            active = [name for name in active if name not in slow]
    return samples


def median(seconds):
    return statistics.median(value for value in seconds if value is not None)


def quartiles(seconds):
    values = sorted(value for value in seconds if value is not None)
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratios(numerator, denominator):
    """Of every round that both took part in."""
    pairs = zip(numerator, denominator)
    return [a / b for a, b in pairs if a is not None and b is not None]


def ratio(numerator, denominator):
    """Median over the rounds of numerator / denominator."""
    return statistics.median(ratios(numerator, denominator))


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))
