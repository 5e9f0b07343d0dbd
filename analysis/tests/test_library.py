# SPDX-License-Identifier: Apache-2.0
"""What a notebook meets: refusals, pictures, units and docstrings of `Run` and `Study`."""

import pytest

import cadenza


@pytest.mark.parametrize("ask", [
    lambda run, study: run.events(ranks=[0, 7]),
    lambda run, study: run.events(steps=[1, 7]),
    lambda run, study: study.step_events(7),
    lambda run, study: study.step_pieces(7),
    lambda run, study: study.stage_work(7),
    lambda run, study: study.graph(7),
    lambda run, study: study.what_if(7),
    lambda run, study: study.critical_path(7),
])
def test_unknown_ranks_and_steps_are_refused(run_folder, ask):
    run = cadenza.open(run_folder)
    with pytest.raises(cadenza.UsageError, match=r"no (rank|complete step) 7; valid are 0 to 1"):
        ask(run, cadenza.Study(run))


def test_known_ranks_and_steps_are_given(run_folder):
    run = cadenza.open(run_folder)
    events = run.events(ranks=iter([1]), steps=iter([1]))
    assert set(events["rank"]) == {1} and set(events["step"]) == {1}
    assert run.events(ranks=[]).empty
