# SPDX-License-Identifier: Apache-2.0
import pandas as pd
import pytest

import cadenza
from cadenza.errors import DataError, UsageError
from cadenza.formats.export import export


def test_what_the_run_does_not_have(run_folder, tmp_path):
    run = cadenza.open(run_folder)
    with pytest.raises(UsageError, match=r"no rank 7; valid are 0 to 1"):
        export(run, "perfetto", tmp_path / "u.json", ranks=[7])
    with pytest.raises(UsageError, match="no complete step 9"):
        export(run, "csv", tmp_path / "u", steps=[9])
    with pytest.raises(UsageError, match="unknown format 'pdf'"):
        export(run, "pdf", tmp_path / "u")


def test_csv_holds_the_frames(run_folder, tmp_path):
    run = cadenza.open(run_folder)
    written = export(run, "csv", tmp_path / "csv", ranks=[0])
    assert {path.stem for path in written} >= {"events", "steps", "ranks", "memory", "metrics"}
    events = pd.read_csv(tmp_path / "csv/events.csv")
    wanted = run.events(ranks=[0])
    assert list(events.columns) == list(wanted.columns)
    assert events["begin_ns"].tolist() == wanted["begin_ns"].tolist()
    assert events["category"].tolist() == wanted["category"].tolist()
    assert pd.read_csv(tmp_path / "csv/steps.csv")["rank"].tolist() == [0, 0]


def test_unwritable_output_is_one_line(run_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        export(cadenza.open(run_folder), "csv", tmp_path / "file")
