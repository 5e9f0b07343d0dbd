# SPDX-License-Identifier: Apache-2.0
"""What the watch prints: the sentences of verdicts (causes/sentences.py) about alarms."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.causes.patterns import ONCE, STEADY
from cadenza.causes.repair import SLOW, Trouble
from cadenza.causes.sentences import ALONE, OF_CORES, kind_and_name, sentence
from cadenza.links.slow import SlowLink
from cadenza.watch.alarm import Alarm
from cadenza.watch.step import Link
from cadenza.words import on_host, ranks_of, seconds, share


def sentence_of(alarm: Alarm, ranks: pd.DataFrame) -> str:
    """@param ranks  Feed.ranks"""
    steps = (alarm.since,) if alarm.since == alarm.last else (alarm.since, alarm.last)
    trend = ONCE if len(steps) == 1 else STEADY
    one = Trouble(alarm.cause, alarm.members, steps, trend, alarm.phases, alarm.excess,
                  tuple(_slow(link, reached) for link, reached in alarm.links))
    kind, name = kind_and_name(one, ranks)
    row = {"kind": kind, "members": list(alarm.members), "cause": alarm.cause,
           "phase": alarm.phases[0] if len(alarm.phases) == 1 else "", "steps": list(steps),
           "trend": trend, "saves": alarm.costs}
    text = sentence(row, name, one, ALONE, (alarm.since - 1, *steps))
    devices = ranks.loc[ranks["rank"].isin(alarm.members), "device"]
    return text + (OF_CORES if alarm.cause == SLOW and devices.map(on_host).any() else "")


def _slow(link: Link, reached: float) -> SlowLink:
    known = len(link.members) == 2
    name = f"link {link.members[0]}-{link.members[1]}" if known else \
        f"a link among ranks {ranks_of(link.members)}"
    return SlowLink(name, (link.members,) if known else (), ((False, link.members),), reached,
                    np.nan, np.nan, np.nan, "")


def learnt(usual: float, noise: float, told: float, wanted: float) -> str:
    """What the watch can see. @param told  share of a step, from which on within three steps"""
    text = f"a step usually takes {seconds(usual)}, with a noise of {share(noise)}: "
    if told <= wanted:
        return text + f"faults of {share(wanted)} of a step or more are told within 3 steps"
    return text + f"faults below {share(told)} of a step are told later, or not at all"


def stretch(first: int, last: int, took: float, wrong: list[str], state: str) -> str:
    """A verdict about some steps.

    @param took  seconds of one of them
    @param state  of a run with which nothing is wrong
    """
    steps = f"steps {first}–{last}" if last > first else f"step {first}"
    return f"{steps}: " + (" ".join(wrong) or f"{state}, {seconds(took)} a step")
