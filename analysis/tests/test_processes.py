# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pandas as pd
import pytest
from test_study import FRAMES

import cadenza
from cadenza import checks, processes
from cadenza.errors import DataError


@pytest.fixture
def several(monkeypatch):
    """Even a small run is looked at in two processes."""
    monkeypatch.setattr(processes, "LARGE", 0)
    monkeypatch.setattr(processes, "processors", lambda: 2)


def test_in_order_and_elsewhere(several):
    found = list(processes.mapped(lambda item: (item, os.getpid()), range(20), 1))
    assert [item for item, _ in found] == list(range(20))
    assert os.getpid() not in {process for _, process in found}


def test_few_events_are_looked_at_here():
    assert list(processes.mapped(lambda item: os.getpid(), range(3), 1)) == [os.getpid()] * 3


def test_errors_come_back(several):
    def fails(item):
        raise DataError(f"no {item}")

    with pytest.raises(DataError, match="no 0"):
        list(processes.mapped(fails, range(3), 1))


def test_goes_on_without_a_process_that_was_killed(several):
    here = os.getpid()

    def dies(item):
        if item == 2 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    assert list(processes.mapped(dies, range(5), 1)) == list(range(5))


def test_the_same_frames(run_folder, several, monkeypatch):
    studies = [cadenza.Study(cadenza.open(run_folder)) for _ in range(2)]
    studies[0].prepare()
    monkeypatch.setattr(processes, "LARGE", 10**9)
    studies[1].prepare()
    for name in FRAMES:
        pd.testing.assert_frame_equal(*(getattr(study, name) for study in studies))
    assert checks.check(studies[0].run) == []
