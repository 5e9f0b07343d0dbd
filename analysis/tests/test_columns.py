# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd

from cadenza.read.columns import numbers_of, one_of, rows_of

NAMES = pd.Series(pd.Categorical(["wait", "pack", None, "wait", "send"]))


def test_names_are_found_by_their_categories():
    assert one_of(NAMES, "wait", "send", "unheard").tolist() == [True, False, False, True, True]
    assert not one_of(NAMES[:0], "wait").any()


def test_names_become_numbers():
    assert numbers_of(NAMES, {"wait": 3, "send": 1}, -1).tolist() == [3, -1, -1, 3, 1]


def test_rows_of_some_columns():
    frame = pd.DataFrame({"name": NAMES, "begin_ns": range(5), "flops": 0.5})
    rows = np.array([4, 0])
    found = rows_of(frame, rows, ["begin_ns", "name"])
    pd.testing.assert_frame_equal(
        found, frame[["begin_ns", "name"]].iloc[rows].reset_index(drop=True)
    )
