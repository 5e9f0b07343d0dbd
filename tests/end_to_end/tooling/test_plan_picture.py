# SPDX-License-Identifier: Apache-2.0
"""`cadenza-analyze plan` on the plans of every placement and kind of attention."""

import json

import pytest

import harness

pytest.importorskip(
    "cadenza.cli", reason="the package analysis/ is not installed here", exc_type=ImportError
)
from cadenza.plan.matrix import NOBODY, matrices  # noqa: E402 - where it is installed
from cadenza.plan.read import read_plan  # noqa: E402

LENGTH, HEADS, HEAD_DIM = 60, 8, 32  # short enough for a cell of each pair, in stripes, too
INPUTS = sorted(
    f"{folder}/{path.name}"
    for folder in ("placements", "attention")
    for path in (harness.ROOT / "inputs" / folder).glob("*.yaml")
    if path.stem != "auto"  # chooses its placement
)


def step_of(name, folder):
    """The JSON of a plan for documents of LENGTH tokens."""
    values = {
        "model.heads": HEADS, "model.kv_heads": 4, "model.d_model": HEADS * HEAD_DIM,
        "data.source": "synthetic", "data.lengths.distribution": "list",
        "data.lengths.values": [LENGTH], "batch.tokens": 24 * LENGTH,
        "batch.microbatch": 2 * LENGTH, "attention.block": 4,
    }
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    command = ["plan", harness.ROOT / "inputs" / name, "--format", "json", *words]
    path = folder / "step.json"
    path.write_text(harness.run_well(1, command, cwd=harness.ROOT).out)
    return path


@pytest.mark.parametrize("name", INPUTS)
def test_every_pair_is_painted_once(name, tmp_path):
    """Were one painted twice, a rank would have fewer than it has FLOPs for."""
    path = step_of(name, tmp_path)
    step, found_step = read_plan(path), json.loads(path.read_text())
    # Of layers with plans of their own, the costs are those of the mean layer.
    layers = [tuple(plan.get("layers", [0])) for plan in found_step["plans"]]
    total = sum(map(len, set(layers)))
    pairs = [0] * step.ranks
    for plan, mine in zip(step.plans, layers, strict=True):
        found, more = matrices(step, plan, 1000)
        assert more == 0
        for one in found:
            assert one.shown == LENGTH == len(one.servers)
            first, end = one.heads or (0, HEADS)
            for server in set(one.servers.flat) - {NOBODY}:
                painted = (end - first) * (one.servers == server).sum()
                pairs[server] += len(mine) * painted
    costs = [total * cost for cost in found_step["summary"]["cost_per_rank"]]
    assert [4 * HEAD_DIM * count for count in pairs] == pytest.approx(costs, rel=1e-12)
