# SPDX-License-Identifier: Apache-2.0
"""Utilization of FLOPs: counted by hand, in the trace, in metrics.jsonl and by the analysis."""

import h5py
import numpy as np
import pytest

import harness

pytest.importorskip(
    "cadenza.cli", reason="the package analysis/ is not installed here", exc_type=ImportError
)
from cadenza import Run, utilization  # noqa: E402 - where it is installed
from cadenza.time.efficiency import work_rates  # noqa: E402

LENGTHS = [70, 33, 128, 25]
MODEL = {"layers": 3, "d_model": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 259}


@pytest.fixture(scope="module", params=["none", "layer"])
def finished(request, tmp_path_factory):
    """Two ranks, each with documents of these lengths once or more."""
    changes = {
        "model": MODEL,
        "data": {
            "source": "synthetic",
            "lengths": {"distribution": "list", "values": LENGTHS},
            "max_document": 128,
        },
        "batch": {"tokens": 1024, "microbatch": 256},
        "parallel": {"data": 2},
        "attention": {"placement": "cad"},
        "run": {"steps": 3, "recompute": request.param},
    }
    return request.param, harness.train(tmp_path_factory.mktemp("utilization"), changes)


def traces(run):
    files = [h5py.File(run.folder / f"trace/rank-{rank:05}.h5", "r") for rank in range(2)]
    peaks = [float(file["/meta/rank"]["peak_flops"][0]) for file in files]
    return [file["/steps"][...] for file in files], peaks


def forward(steps):
    """Of a step: products of matrices, and 4 head_dim per visible pair, layer and head."""
    tokens = steps["tokens"].astype(np.float64)
    pairs = (steps["sum_length2"] + tokens) / 2
    head_dim = MODEL["d_model"] // MODEL["heads"]
    width, keys = MODEL["d_model"], MODEL["kv_heads"] * head_dim
    matrices = MODEL["layers"] * (2 * width * width + 2 * width * keys + 3 * width * MODEL["ffn"])
    dense = 2.0 * tokens * (matrices + MODEL["vocab"] * width)
    return dense, MODEL["layers"] * MODEL["heads"] * 4.0 * head_dim * pairs


def test_the_model_asks_for_three_forward_passes(finished):
    _, run = finished
    (steps, _), _ = traces(run)
    dense, attention = forward(steps)
    np.testing.assert_allclose(steps["model_flops"], 3 * (dense + attention), rtol=1e-12)


def test_what_is_executed_has_the_scores_again_and_what_is_recomputed(finished):
    recompute, run = finished
    steps, _ = traces(run)
    dense, attention = forward(steps[0])
    executed = sum(rank["executed_flops"] for rank in steps)
    least = 3 * dense + 3.5 * attention
    if recompute == "none":
        np.testing.assert_allclose(executed, least, rtol=1e-12)
    else:
        assert (executed > least + 0.99 * attention).all()


def test_metrics_are_shares_of_the_peaks(finished):
    _, run = finished
    steps, peaks = traces(run)
    assert min(peaks) > 0
    available = run.column("seconds") * sum(peaks)
    np.testing.assert_allclose(
        run.column("model_flops_utilization"), steps[0]["model_flops"] / available, rtol=1e-12
    )
    executed = sum(rank["executed_flops"] for rank in steps)
    np.testing.assert_allclose(
        run.column("hardware_flops_utilization"), executed / available, rtol=1e-12
    )


def test_the_analysis_says_the_same(finished):
    _, run = finished
    analysed = Run(run.folder)
    found = utilization(analysed.steps(), analysed.ranks(), work_rates(analysed.events()))
    # Its step lasts until the last rank is done, that of metrics.jsonl until rank 0 is.
    scale = run.column("seconds") / found["seconds"]
    for name, column in (("mfu", "model"), ("hfu", "hardware")):
        expected = run.column(f"{column}_flops_utilization") * scale
        np.testing.assert_allclose(found[name], expected, rtol=1e-9)
