# SPDX-License-Identifier: Apache-2.0
"""A run that goes on is watched: faults are told within three steps, and nothing else."""

import os
import time
import numpy as np
import pytest
from watched_runs import Growing

import cadenza
from cadenza.errors import DamagedError, DataError
from cadenza.graph.loads import operation_loads
from cadenza.read.rank_tables import Table
from cadenza.watch import loop
from cadenza.watch.cusum import AT_ONCE, IN_TWO, Cusum
from cadenza.watch.lines import sentence_of
from cadenza.watch.pace import Pace
from cadenza.watch.step import Sums
from cadenza.watch.trace_feed import TraceFeed
from cadenza.watch.watcher import Watcher

FIRST = 14  # step in which what is planted begins
STEPS = 20


def alarms(run, steps=STEPS):
    """(step that showed it, alarm) of a run that is read step by step, after its first ones."""
    feed = TraceFeed(run.folder)
    watcher, found = Watcher(feed), []
    for count in range(min(FIRST - 2, steps), steps + 1):
        run.write(count)
        found += [(step.number, one) for step in feed.poll() for one in watcher.add(step)]
    return found, watcher, feed


def since(first, rank, value, usual):
    return lambda r, step: value if step >= first and r == rank else usual


PLANTED = {  # what is planted, and the cause, members and phases that are to be told
    "slow": ({"speed": since(FIRST, 2, 0.92, 1.0)}, "slow", (2,)),
    "all": ({"speed": lambda rank, step: 0.9 if step >= FIRST else 1.0}, "slow", (0, 1, 2, 3)),
    "core": ({"still": since(FIRST, 1, 0.15, 0.0)}, "no core", (1,)),
    "input": ({"reads": since(FIRST, 3, 60, 1)}, "input", (3,)),
    "late": ({"late": since(FIRST, 0, 50, 0)}, "late start", (0,)),
    "stop": ({"stop": lambda rank, step: 200 * (step == FIRST and rank == 3)}, "paused", (3,)),
    "between": ({"pause": lambda step: 300 if step == FIRST else 1}, "paused", (0, 1, 2, 3)),
    "link": ({"link": lambda step: 80 if step >= FIRST else 4}, "link", (0, 1)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_told_within_three_steps(name, tmp_path):
    planted, cause, members = PLANTED[name]
    found, _, feed = alarms(Growing(tmp_path / "run", **planted))
    assert [(one.cause, one.members) for _, one in found] == [(cause, members)]
    (step, alarm), = found
    assert FIRST <= step < FIRST + 3
    assert alarm.since == FIRST and alarm.costs >= 0
    assert str(members[0]) in sentence_of(alarm, feed.ranks) or len(members) == 4


def test_a_clean_run_is_silent_whatever_the_lengths_of_its_documents(tmp_path):
    found, watcher, _ = alarms(Growing(tmp_path / "run"), 30)
    assert found == [] and watcher.current() == [] and watcher.standing() == []
    noise, told = watcher.sees
    assert noise < 0.01 and told < 0.05


def test_what_is_over_is_current_no_more(tmp_path):
    run = Growing(tmp_path / "run", speed=lambda rank, step: 0.8 if rank == 1 and 12 <= step < 16
                  else 1.0)
    found, watcher, _ = alarms(run, 15)
    assert len(found) == 1 and [one.members for one in watcher.current()] == [(1,)]
    found, watcher, _ = alarms(run, 24)
    assert len(found) == 1 and watcher.current() == []


def test_a_rank_that_is_slow_from_the_begin_is_told_once_what_is_usual_is_known(tmp_path):
    found, _, _ = alarms(Growing(tmp_path / "run", speed=since(0, 1, 0.8, 1.0)), 12)
    assert [(step <= 9, one.members, one.since) for step, one in found] == [(True, (1,), 1)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_for_its_data_from_the_begin_is_told_at_once(rank, ranks, tmp_path):
    run = Growing(tmp_path / "run", ranks=ranks, reads=since(0, rank, 60, 1))
    found, watcher, _ = alarms(run, 12)
    assert [(step, one.cause, one.members, one.since) for step, one in found] == [
        (8, "input", (rank,), 1)]
    assert found[0][1].costs == pytest.approx(0.15, abs=0.02) and watcher.standing() == []


STANDING = {  # what is there from the begin: ms of each step
    "reads": ({"reads": lambda rank, step: 60}, "input", 60),
    "stops": ({"stop": lambda rank, step: 80}, "paused", 80),
    "gaps": ({"pause": lambda step: 70}, "paused", 69),
}


@pytest.mark.parametrize("name", STANDING)
def test_what_all_ranks_wait_for_from_the_begin_is_told_and_no_alarm(name, tmp_path, inside):
    planted, cause, lost = STANDING[name]
    run = Growing(tmp_path / "run", **planted)
    found, watcher, _ = alarms(run)
    assert found == []
    (one,) = watcher.standing()
    assert (one.cause, one.members, one.since) == (cause, (0, 1, 2, 3), 1)
    assert one.costs == pytest.approx(lost / 1000 / watcher.seconds, rel=0.1)
    run.write(STEPS, state=1)
    result = inside("watch", run.folder)
    assert result.returncode == 0 and "healthy" not in result.stdout
    assert result.stdout.count("Repairing all ranks saves ") == 3  # at first, and of each ten steps


def test_a_wait_that_is_over_or_small_stands_no_more(tmp_path):
    run = Growing(tmp_path / "run", reads=lambda rank, step: 60 if step < FIRST else 1)
    assert len(alarms(run, 12)[1].standing()) == 1
    assert alarms(run, FIRST + 9)[1].standing() == []
    assert alarms(Growing(tmp_path / "small", reads=lambda rank, step: 12))[1].standing() == []
    # What lies between short steps takes a part of them, and is no pause.
    assert alarms(Growing(tmp_path / "short", pause=lambda step: 40))[1].standing() == []


def test_two_ranks_have_only_their_own_past(tmp_path):
    found, _, _ = alarms(Growing(tmp_path / "run", ranks=2, speed=since(FIRST, 1, 0.9, 1.0)))
    assert [one.members for _, one in found] == [(1,)] and found[0][0] < FIRST + 3


def test_cores_of_a_host_are_slower_without_a_fault(tmp_path):
    speed = since(FIRST, 1, 0.9, 1.0)
    found, _, _ = alarms(Growing(tmp_path / "run", device=b"host", speed=speed))
    assert found == []
    slower = Growing(tmp_path / "slower", device=b"host", speed=since(FIRST, 1, 0.6, 1.0))
    found, _, _ = alarms(slower)
    assert [one.members for _, one in found] == [(1,)]


def test_who_stands_still_in_a_wait_that_nobody_waits_for_costs_nothing(tmp_path):
    run = Growing(tmp_path / "run", in_wait=True,
                  stop=lambda rank, step: 150 * (step == FIRST and rank == 3))
    assert alarms(run)[0] == []


def test_who_stands_still_in_every_step_is_told_of_what_is_longer(tmp_path):
    def stop(rank, step):
        return 400 if (rank, step) == (2, FIRST) else 50 + np.random.default_rng(
            [rank, step]).integers(40) if rank < 3 else 0

    found, _, _ = alarms(Growing(tmp_path / "run", stop=stop))
    assert [(one.cause, one.members, one.since) for _, one in found] == [("paused", (2,), FIRST)]


def test_sums_are_those_of_operation_loads(tmp_path):
    folder = Growing(tmp_path / "run", still=lambda rank, step: 0.1).write(3, state=1)
    run = cadenza.open(folder)
    loads = operation_loads(run.events(), run.ranks())
    loads = loads[loads["category"] != "data"]
    feed = TraceFeed(folder)
    rows = {(step.number, int(rank), feed.operations[what][:3]): values
            for step in feed.poll() for rank, one in zip(step.ranks, step.each, strict=True)
            for what, *values in zip(one.work.what, one.work.seconds, one.work.amount, one.still,
                                     strict=True)}
    assert len(rows) == len(loads)
    for row in loads.itertuples():
        found = rows[row.step, row.rank, (row.phase, row.category, row.name)]
        assert found == pytest.approx([row.seconds, row.flops, row.still], rel=1e-9)


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    run, ranges = Growing(tmp_path / "run"), []
    feed = TraceFeed(run.folder)
    run.write(5)
    for file in run.folder.glob("trace/*.h5"):  # one that has just changed may change once more
        os.utime(file, (time.time() - 10, time.time() - 10))
    assert len(feed.poll()) == 5
    read = Table.read

    def noted(table, begin, end):
        ranges.append((table.name, end - begin))
        return read(table, begin, end)

    monkeypatch.setattr(Table, "read", noted)
    assert feed.poll() == [] and ranges == []  # files that did not change are not opened
    run.write(6)
    assert [step.number for step in feed.poll()] == [5]
    of_events = {rows for name, rows in ranges if name == "/events"}
    assert {rows for name, rows in ranges if name == "/steps"} == {1} and max(of_events) <= 11


def test_a_run_that_goes_on_is_watched_from_its_last_steps(tmp_path, monkeypatch):
    run = Growing(tmp_path / "run")
    run.write(50)
    monkeypatch.setattr(TraceFeed, "left", False)
    feed = TraceFeed(run.folder)
    assert [step.number for step in feed.poll()][0] == 18


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x")])
def test_a_file_that_vanishes_or_is_damaged_is_left_out(harm, tmp_path, caplog):
    run = Growing(tmp_path / "run")
    run.write(12)
    feed = TraceFeed(run.folder)
    watcher = Watcher(feed)
    for step in feed.poll():
        watcher.add(step)
    run.write(14)
    harm(run.folder / "trace" / "rank-00002.h5")
    with caplog.at_level("WARNING", logger="cadenza"):
        steps = feed.poll()
    assert [list(step.ranks) for step in steps] == [[0, 1, 3]] * 2
    assert [watcher.add(step) for step in steps] == [[], []]


def test_a_file_that_its_writer_is_at_just_now_is_looked_at_again(tmp_path, monkeypatch, caplog):
    run = Growing(tmp_path / "run")
    run.write(3)
    feed = TraceFeed(run.folder)
    feed.poll()
    run.write(4)
    file = feed._files[1].file
    read, file.ended = file.read, False

    def half_written(action):
        raise DamagedError("bad address")

    monkeypatch.setattr(file, "read", half_written)
    for _ in range(4):
        assert feed.poll() == [] and not caplog.records
    monkeypatch.setattr(file, "read", read)
    assert [list(step.ranks) for step in feed.poll()] == [[0, 1, 2, 3]]
    run.write(5)
    monkeypatch.setattr(file, "read", half_written)
    file.ended = False
    found = [[step.ranks.tolist() for step in feed.poll()] for _ in range(5)]
    assert found == [[], [], [], [], [[0, 2, 3]]]


def test_without_any_file_there_is_nothing_to_watch(tmp_path):
    run = Growing(tmp_path / "run", ranks=2)
    run.write(3)
    feed = TraceFeed(run.folder)
    feed.poll()
    for path in (run.folder / "trace").glob("*.h5"):
        path.unlink()
    with pytest.raises(DataError, match="no rank file is left"):
        feed.poll()


def test_another_run_in_the_same_place_is_refused(tmp_path):
    run = Growing(tmp_path / "run", ranks=2)
    run.write(3)
    feed = TraceFeed(run.folder)
    feed.poll()
    run.options["run_id"] = "run-2"
    run.write(4)
    with pytest.raises(DataError, match="another run has begun in its place"):
        feed.poll()


def test_a_rank_that_writes_no_more_is_told(tmp_path):
    run = Growing(tmp_path / "run")
    run.write(3)
    feed = TraceFeed(run.folder)
    feed.poll()
    kept = (run.folder / "trace" / "rank-00001.h5").read_bytes()
    run.write(30)
    (run.folder / "trace" / "rank-00001.h5").write_bytes(kept)
    assert [list(step.ranks) for step in feed.poll()][-1] == [0, 2, 3]
    assert feed.silent() == [(1, 2)] and feed.silent() == []


class Clock:
    """Time that passes as somebody sleeps; `at` says what happens when."""

    def __init__(self, monkeypatch, *at):
        self.now, self.at = 1e9, sorted(at, key=lambda one: one[0])
        for name in ("monotonic", "time"):
            monkeypatch.setattr(loop.time, name, lambda: self.now)
        monkeypatch.setattr(loop.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds
        while self.at and self.now >= 1e9 + self.at[0][0]:
            self.at.pop(0)[1]()


def test_a_run_is_waited_for_watched_and_left_when_it_ends(tmp_path, monkeypatch, inside):
    run = Growing(tmp_path / "run")
    monkeypatch.setattr(TraceFeed, "left", False)
    Clock(monkeypatch, (30, lambda: run.write(0)), (60, lambda: run.write(5)),
          (65, lambda: run.write(12)), (67, lambda: run.write(15, state=1)))
    result = inside("watch", run.folder, "--every", 5)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "no complete step yet; waiting"
    assert [line.split(",")[0] for line in lines if line.startswith("steps ")] == [
        "steps 0–4: not judged yet", "steps 5–9: healthy", "steps 10–14: healthy"]
    assert lines[-2:] == ["the run has ended", f"{run.folder}: watched 15 steps, no alarms"]


def test_a_hang_is_an_alarm_and_its_end_is_told(tmp_path, monkeypatch, inside):
    run = Growing(tmp_path / "run")
    run.write(12)
    monkeypatch.setattr(TraceFeed, "left", False)
    clock = Clock(monkeypatch, (40, lambda: run.write(13, state=1)))
    result = inside("watch", run.folder)
    assert result.returncode == 1
    told = [line for line in result.stdout.splitlines() if "ALARM" in line or "goes on" in line]
    assert len(told) == 2 and told[0].startswith("ALARM no step for 1")
    assert "it hangs" in told[0] and told[1] == "step 12: the run goes on"
    assert clock.now < 1e9 + 60


def test_a_run_that_was_killed_is_over(tmp_path, monkeypatch, inside):
    run = Growing(tmp_path / "run")
    run.write(12)
    Clock(monkeypatch)
    result = inside("watch", run.folder)
    assert result.returncode == 1
    assert "ALARM no step for" in result.stdout and "it was killed" in result.stdout


def test_the_first_alarm_can_end_the_watch(tmp_path, inside):
    run = Growing(tmp_path / "run", speed=since(FIRST, 2, 0.8, 1.0))
    run.write(30, state=1)
    result = inside("watch", run.folder, "--until-alarm")
    assert result.returncode == 1
    (told,) = [line for line in result.stdout.splitlines() if "ALARM" in line]
    assert told.startswith(f"ALARM step {FIRST + 1}: Repairing rank 2 (node, GPU 2) saves ")
    assert told.endswith(f"it computes at 0.80 x the usual rate, since step {FIRST}.")
    assert result.stdout.splitlines()[-1].endswith("1 alarm")
    assert "since" in inside("watch", run.folder).stdout.splitlines()[-4]


def test_an_error_and_a_signal_are_told(tmp_path, inside):
    run = Growing(tmp_path / "run", options={"signal": 15})
    run.write(12, state=2)
    result = inside("watch", run.folder)
    assert result.returncode == 0 and "the run ended by SIGTERM after step 11" in result.stdout
    run.write(12, state=3)
    result = inside("watch", run.folder)
    assert result.returncode == 1 and "ALARM the run ended by an error" in result.stdout


def test_interrupting_it_ends_it_with_its_last_verdict(tmp_path, monkeypatch, inside):
    run = Growing(tmp_path / "run")
    run.write(12)
    monkeypatch.setattr(loop.time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    result = inside("watch", run.folder)
    assert (result.returncode, result.stderr) == (130, "")
    assert result.stdout.splitlines()[-1] == f"{run.folder}: watched 12 steps, no alarms"


@pytest.mark.parametrize(("words", "code", "said"), [
    (["{}/missing/run"], 3, "no such folder"), (["{}/file"], 3, "not a run folder"),
    (["{}/run", "--every", "0"], 2, "valid: an integer from 1"),
    (["{}/empty"], 3, "no complete step in the trace")])
def test_what_cannot_be_watched_is_one_line(words, code, said, tmp_path, inside):
    (tmp_path / "file").touch()
    Growing(tmp_path / "empty", ranks=2).write(0, state=1)
    result = inside("watch", *(word.format(tmp_path) for word in words))
    assert result.returncode == code and said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_run_of_few_steps_is_not_judged(tmp_path, inside):
    run = Growing(tmp_path / "run", ranks=2)
    run.write(4, state=1)
    result = inside("watch", run.folder)
    assert result.returncode == 0 and "healthy" not in result.stdout
    assert "steps 0–3: not judged yet, " in result.stdout
    assert "too few steps to judge any: that takes 9" in result.stdout


def test_a_noise_that_hides_faults_is_told_once(tmp_path, monkeypatch, inside):
    monkeypatch.setattr("watched_runs.JITTER", 0.3)
    run = Growing(tmp_path / "run")
    run.write(12, state=1)
    lines = inside("watch", run.folder).stdout.splitlines()
    assert sum("are told later, or not at all" in line for line in lines) == 1


def test_usual_pace_is_that_of_most_for_each_and_for_each_flop():
    random = np.random.default_rng(0)
    count = np.full(200, 3.0)
    amount = 3 * np.minimum(random.pareto(1.1, 200) + 1, 1000)
    seconds = 2.0 * count + 0.5 * amount
    seconds[:40] *= 1.5  # slow ranks
    pace = Pace()
    pace.learn([Sums(np.zeros(200, int), seconds, count, amount)], np.arange(2))
    fair = pace.fair(Sums(np.array([0, 1, 2]), np.ones(3), np.array([1.0, 1, 1]),
                          np.array([100.0, 1, 1])))
    assert fair[0] == pytest.approx(52.0, rel=0.01) and np.isnan(fair[1:]).all()


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_false_alarms_are_as_rare_as_they_are_to_be(noise):
    """Of a rate of 1e-3 in a step, 200 000 steps have about 200, not many more."""
    random = np.random.default_rng(1)
    test = Cusum((1000,), 1e-3, AT_ONCE)
    test.tune(np.full(1000, noise), np.full(1000, 0.05))
    count = 0
    for step in range(200):
        count += int(test.add(step, noise * random.standard_normal(1000)).sum())
        test.sum[test.raised], test.raised[:] = 0.0, False
    assert count <= 300
    if noise == 0.03:
        assert count >= 50


def test_a_rise_is_told_within_three_steps_and_one_step_alone_never():
    random = np.random.default_rng(2)
    test = Cusum((1000,), 1e-8, IN_TWO)
    test.tune(np.full(1000, 0.008), np.full(1000, 0.05))
    for step in range(20):
        test.add(step, 0.008 * random.standard_normal(1000))
    test.add(20, np.full(1000, 5.0))
    assert not test.raised.any()
    for step in range(21, 30):
        test.add(step, 0.008 * random.standard_normal(1000))
    assert not test.raised.any()
    for step in range(30, 33):
        test.add(step, 0.05 + 0.008 * random.standard_normal(1000))
    assert test.raised.mean() > 0.95
    assert (test.since[test.raised] == 30).mean() > 0.9
