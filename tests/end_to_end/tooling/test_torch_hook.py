# SPDX-License-Identifier: Apache-2.0
"""The hook for PyTorch programs: what it says of trainings with a fault in them, and what it must
leave as it was. It needs PyTorch 2.2 or newer with gloo; nothing here has a GPU."""

import subprocess

import pandas as pd
import pytest

import harness
from cadenza.sources.neutral_files import NEUTRAL

pytestmark = pytest.mark.thorough
TRAINING = harness.ROOT / "analysis/tests/torch_runs.py"
CHECKS = harness.ROOT / "analysis/tests/torch_hook_checks.py"
MS = 1_000_000
STEPS = 6


@pytest.fixture(scope="module")
def python():
    return harness.python_with("torch", "pyarrow")


@pytest.fixture
def trained(python, tmp_path):
    """Traces of all ranks, in one frame, and the number of ranks that files tell."""
    def train(world, mode, fault="none", rank=0):
        words = [python, TRAINING, "--world", world, "--mode", mode, "--fault", fault, "--rank",
                 rank, "--steps", STEPS, "--output", tmp_path / "trace"]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True,
                              timeout=harness.TIMEOUT, check=False)
        assert done.returncode == 0, done.stderr
        files = sorted((tmp_path / "trace").iterdir())
        assert all(NEUTRAL.claims(file) for file in files)
        traces = [trace for file in files for trace in NEUTRAL.read(file)]
        assert {trace.world for trace in traces} == {world}
        assert {trace.rank for trace in traces} == set(range(world))
        events = pd.concat([trace.events.astype({"kind": str, "phase": str, "name": str,
                                                 "stream": str, "group": str, "members": str})
                            for trace in traces], ignore_index=True)
        return with_steps(events)
    return train


def with_steps(events):
    """Adds `of_step`: that in which a row was begun, -1 outside; and the time of the processor."""
    events["of_step"] = -1
    for row in events[events["kind"] == "step"].itertuples():
        began = events["enqueued_ns"].where(events["enqueued_ns"] > 0, events["begin_ns"])
        mine = (events["rank"] == row.rank) & (began >= row.begin_ns) & (began < row.end_ns)
        events.loc[mine, "of_step"] = row.step
    events["took"] = (events["end_ns"] - events["begin_ns"]) / MS
    events["worked"] = events["took"] - events["still_ns"].clip(lower=0) / MS
    return events


def by_rank(events, kind, phase, column="worked"):
    """Median over steps, without the first, of the sum in a step."""
    rows = events[(events["kind"] == kind) & (events["phase"] == phase) & (events["of_step"] > 0)]
    return rows.groupby(["rank", "of_step"])[column].sum().groupby("rank").median()


def test_every_part_of_a_step_is_there(trained):
    events = trained(2, "ddp")
    steps = events[events["kind"] == "step"].sort_values(["rank", "step"])
    assert steps["step"].tolist() == 2 * list(range(STEPS))
    (first, second) = (rows for _, rows in steps.groupby("rank"))
    for rows in (first, second):
        assert (rows["begin_ns"].to_numpy()[1:] == rows["end_ns"].to_numpy()[:-1]).all()
    parts = events[events["of_step"] > 0].groupby(["rank", "of_step"])
    for _, rows in parts:
        told = set(zip(rows["kind"], rows["phase"]))
        assert {("data", "other"), ("other", "forward"), ("other", "backward"),
                ("collective", "backward"), ("optimizer", "optimizer")} <= told
    on_host = events[(events["stream"] == "host") & (events["kind"] != "step")]
    for _, rows in on_host.sort_values("begin_ns").groupby("rank"):
        assert (rows["begin_ns"].to_numpy()[1:] >= rows["end_ns"].to_numpy()[:-1]).all()


def test_sums_of_gradients_are_matched_and_weighed(trained):
    events = trained(2, "ddp")
    sums = events[(events["kind"] == "collective") & (events["phase"] == "backward")]
    assert set(sums["members"]) == {"0,1"} and sums["group"].nunique() == 1
    assert sums.groupby(["group", "sequence"])["rank"].nunique().eq(2).all()
    parameters = 4 * 4 * (512 * 512 + 512)  # four layers of float32
    assert sums.groupby(["rank", "of_step"])["bytes"].sum().eq(parameters).all()


def test_a_slower_backward_pass_is_seen_where_all_steps_last_as_long(trained):
    events = trained(4, "ddp", "backward", rank=2)
    backward = by_rank(events, "other", "backward")
    assert backward[2] > backward.drop(2).max() + 25  # 40 ms of its processor are planted
    assert by_rank(events, "other", "forward")[2] < backward[2] / 2
    last = events[(events["kind"] == "collective") & (events["of_step"] > 0)]
    last = last.groupby(["of_step", "rank"])["enqueued_ns"].max().groupby("of_step").idxmax()
    assert sum(rank == 2 for _, rank in last) >= STEPS - 2  # which comes last to the last sum
    ended = events[(events["kind"] == "collective") & (events["of_step"] > 0)]
    ended = ended.groupby(["sequence", "rank"])["end_ns"].max().groupby("sequence")
    assert (ended.max() - ended.min()).median() < 20 * MS  # but all have the sum together


def test_late_data(trained):
    data = by_rank(trained(2, "ddp", "data", rank=1), "data", "other", "took")
    assert data[1] >= 59 and data[0] < 30


def test_a_pause_is_time_without_a_processor(trained):
    events = trained(2, "ddp", "pause", rank=1)
    rows = events[(events["kind"] == "other") & (events["phase"] == "forward")]
    still = rows.groupby(["rank", "of_step"])["still_ns"].sum() / MS
    assert still[1, STEPS // 2] >= 290
    assert still.drop((1, STEPS // 2)).max() < still[1, STEPS // 2]


def test_messages_of_a_pipeline_have_two_ends(trained):
    events = trained(2, "pipeline", "slow", rank=1)
    sends, receives = (events[events["kind"] == kind] for kind in ("send", "receive"))
    ends = sends.merge(receives, left_on=["rank", "peer", "sequence"],
                       right_on=["peer", "rank", "sequence"])
    assert len(ends) == len(sends) == len(receives) == 2 * 4 * STEPS  # both ways, 4 microbatches
    for side in ("bytes_x", "bytes_y"):
        assert (ends[side] == 128 // 4 * 512 * 4).all()
    assert (ends["end_ns_y"] >= ends["begin_ns_x"]).all()
    assert by_rank(events, "synchronize", "other", "took")[0] > 20  # it waits for the slow stage


@pytest.mark.parametrize("check", ["restored", "results", "batch", "groups", "late",
                                   "device_clock"])
def test_what_must_hold(python, tmp_path, check):
    done = subprocess.run([python, CHECKS, check, tmp_path], capture_output=True, text=True,
                          timeout=harness.TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
