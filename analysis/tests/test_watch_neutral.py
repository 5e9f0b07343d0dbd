# SPDX-License-Identifier: Apache-2.0
"""A program of others is watched by the pieces that its ranks write in the neutral format."""

import os
import time

import numpy as np
import pytest

pytest.importorskip("pyarrow")
from cadenza.sources.neutral import RankTrace, frame  # noqa: E402
from cadenza.sources.neutral_files import write  # noqa: E402
from cadenza.watch.neutral_feed import FirstFeed, NeutralFeed  # noqa: E402
from cadenza.watch.trace_feed import TraceFeed  # noqa: E402
from cadenza.watch.watcher import Watcher  # noqa: E402

MS = 1_000_000
RANKS, PIECE = 4, 5
FIRST = 17  # step in which what is planted begins


def begin_of(step, speed, link):
    """ns: steps are as long as the slowest rank computes and the network takes."""
    return sum(int(MS * (340 / min(speed(rank, at) for rank in range(RANKS)) + link(at)))
               for at in range(step))


def write_piece(folder, rank, first, speed=lambda rank, step: 1.0, link=lambda step: 10):
    """Some steps of a rank, as the hook for PyTorch writes them."""
    folder.mkdir(exist_ok=True)
    rows = []
    for step in range(first, first + PIECE):
        at, over = (begin_of(one, speed, link) for one in (step, step + 1))
        random, now = np.random.default_rng([rank, step]), at
        for kind, phase, ms in (("data", "other", 1), ("other", "forward", 100),
                                ("other", "backward", 200), ("optimizer", "optimizer", 10)):
            took = int(ms * MS * np.exp(0.01 * random.standard_normal()) / speed(rank, step))
            rows.append((now, now + took, kind, phase, -1, -1, -1))
            now += took
        # The clocks of the ranks are apart; who comes last waits least.
        rows.append((over - int((link(step) + 5 * rank) * MS), over, "collective", "backward", 100,
                     step, -1))
        rows.append((at, over, "step", "other", -1, -1, step))
    begin, end, kind, phase, size, sequence, step = zip(*rows, strict=True)
    events = frame({"rank": rank, "begin_ns": np.array(begin) + rank * 10**12,
                    "end_ns": np.array(end) + rank * 10**12, "kind": list(kind),
                    "phase": list(phase), "bytes": size, "sequence": sequence, "step": step,
                    "group": "dp", "name": list(kind), "members": "0,1,2,3"}, len(rows))
    trace = RankTrace(rank, RANKS, events, host="n1", device="card")
    write(trace, folder / f"rank-{rank:05}.{first:08}.arrow")


def watched(folder, pieces=6, **planted):
    feed = NeutralFeed(folder)
    watcher, found = Watcher(feed), []
    for first in range(0, pieces * PIECE, PIECE):
        for rank in range(RANKS):
            write_piece(folder, rank, first, **planted)
        found += [(step.number, alarm) for step in feed.poll() for alarm in watcher.add(step)]
    return found


def test_a_clean_program_is_healthy(tmp_path):
    assert watched(tmp_path / "run") == []


def test_a_slow_rank_is_told_within_three_steps(tmp_path):
    def speed(rank, step):
        return 0.9 if rank == 2 and step >= FIRST else 1.0

    ((step, alarm),) = watched(tmp_path / "run", speed=speed)
    assert (alarm.cause, alarm.members, alarm.since) == ("slow", (2,), FIRST) and step < FIRST + 3


def test_a_slow_network_is_told_whatever_the_clocks_show(tmp_path):
    ((step, alarm),) = watched(tmp_path / "run", link=lambda step: 300 if step >= FIRST else 10)
    assert (alarm.cause, alarm.members, alarm.since) == ("link", (0, 1, 2, 3), FIRST)
    assert step < FIRST + 3


def test_pieces_that_cannot_be_read_and_ranks_that_stop_are_left_out(tmp_path, caplog):
    folder = tmp_path / "run"
    feed = NeutralFeed(folder)
    for first in range(0, 40, PIECE):
        for rank in range(RANKS):
            if rank != 3 or first < 10:
                write_piece(folder, rank, first)
    (folder / "rank-00001.00000040.arrow").write_bytes(b"no Arrow file")
    with caplog.at_level("WARNING", logger="cadenza"):
        steps = feed.poll()
    assert "continuing without it" in caplog.text
    assert [step.number for step in steps] == list(range(40))[-len(steps):]
    assert list(steps[-1].ranks) == [0, 1, 2] and feed.silent() == [(3, 9)]


def test_the_files_that_come_say_what_kind_of_run_it_is(tmp_path):
    feed = FirstFeed(TraceFeed(tmp_path / "run"), NeutralFeed(tmp_path / "run"))
    assert feed.poll() == [] and not feed.begun
    for rank in range(RANKS):
        write_piece(tmp_path / "run", rank, 0)
    assert len(feed.poll()) == PIECE and feed.begun and feed.together == PIECE


def test_old_files_are_of_a_run_that_has_ended(tmp_path, inside):
    folder = tmp_path / "run"
    for first in range(0, 15, PIECE):
        for rank in range(RANKS):
            write_piece(folder, rank, first)
    for path in folder.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)
    result = inside("watch", folder)
    assert result.returncode == 0 and "steps 10–14: healthy" in result.stdout
    assert result.stdout.splitlines()[-2] == "the run has ended"
