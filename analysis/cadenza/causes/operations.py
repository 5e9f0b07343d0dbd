# SPDX-License-Identifier: Apache-2.0
"""Who is to be repaired in a run whose waits are not all recorded: by the operations that
`slowdown` replays, which leave out what lies between them. A replay of all that ranks did would
keep such a wait where it was, so that no repair of who is waited for saves anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from cadenza.causes import troubles
from cadenza.causes.patterns import STEADY
from cadenza.causes.repair import STAGE, Trouble
from cadenza.causes.slowdown import PASSES, Replay, ideal_seconds
from cadenza.causes.verdicts import verdicts
from cadenza.graph.operations import COMPUTATION

_LONGER = 0.08  # of what other stages take: a stage that takes less more is not worth a word


def verdicts_of_operations(made: pd.DataFrame, facts: troubles.Facts) -> pd.DataFrame:
    """verdicts.verdicts() of a run whose operations are `made`. A repair gives all operations of
    its members ideal durations, so what it saves is its share of what `slowdown` calls the loss."""
    own, ideal, replay = made["seconds"].to_numpy(float), ideal_seconds(made), Replay(made)
    rank, step = made["rank"].to_numpy(), made["step"].to_numpy()

    def replayed(found: Sequence[Trouble], cases: np.ndarray) -> np.ndarray:
        of = np.stack([np.isin(rank, one.members) & np.isin(step, one.steps) for one in found])
        return np.array([replay.seconds(np.where(of[case].any(axis=0), ideal, own)[:, None])[0]
                         for case in cases])

    seconds = replay.of_steps(own[:, None])[:, 0]
    facts = replace(facts, step_seconds=pd.Series(seconds, index=pd.unique(step)))
    found = [*troubles.steadily_slow(facts), *_long_stages(made, facts)]
    return verdicts(found, pd.DataFrame({"seconds": pd.Series(dtype=float)}), replayed, facts)


def _long_stages(made: pd.DataFrame, facts: troubles.Facts) -> Iterable[Trouble]:
    """Stages of a pipeline whose passes take longer than those of the others on each of their
    ranks: they have more to do, or are slow; which of both no other rank tells."""
    computes = ((made["kind"] == COMPUTATION) & made["phase"].isin(PASSES)).to_numpy()
    took = made[computes].groupby(["rank", "step"])["seconds"].sum().groupby("rank").median()
    stage = facts.ranks.set_index("rank")["pipeline"]
    # Of two replicas the faster, as one rank of a stage may be slow.
    usual = took.groupby(stage.reindex(took.index)).quantile(0.5, interpolation="lower")
    steps = tuple(int(one) for one in facts.step_seconds.index)
    for number, seconds in usual.items():
        others = usual.drop(number).quantile(0.5, interpolation="lower")
        if seconds > (1 + _LONGER) * others:
            members = tuple(sorted(int(one) for one in stage.index[stage == number]))
            excess = {(one, step): float(1 - others / seconds) for one in members for step in steps}
            yield Trouble(STAGE, members, steps, STEADY, PASSES, excess)
