# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, and the comparison alternates, keeps what it measured and judges rightly."""

import json
import os
import sys

import numpy as np
import pytest

import harness

sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks import unequal_ranks as unequal
from benchmarks.compare import __main__ as compare
from benchmarks.compare import cases, measure, table
from benchmarks.placements import __main__ as placements
from benchmarks.placements import cases as placed
from benchmarks.placements import table as placed_table
from lib import process, sampling

FOLDER = harness.PROGRAM.parent / "bench"
ATTENTION = {"heads": 4, "kv_heads": 2, "head_dim": 64, "documents": [100, 1, 70], "task": 32}
STEP = {"layers": 1, "d_model": 32, "heads": 2, "kv_heads": 1, "ffn": 48, "vocab": 100,
        "documents": [40, 24]}
# FLOP/s and bytes with which every line of the table is met; any one that falls is not.
RATES = {"limit": 1.0, "ours": 0.9, "ours float32": 0.5, "torch": 0.5, "eager": 0.5,
         "compiled": 0.6, "llm.c": 0.1, "whole": 0.9}
PEER = """
import sys
sys.path.insert(0, {peers!r})
import protocol
protocol.serve(lambda work: (lambda: None, 1e6, lambda: {{"peer": work["heads"]}}))
"""


@pytest.fixture(scope="module", autouse=True)
def built():
    if not (FOLDER / "bench_attention").is_file():
        pytest.skip(f"{FOLDER} has no benchmarks")


@pytest.fixture
def programs(tmp_path):
    stub = tmp_path / "peer.py"
    stub.write_text(PEER.format(peers=str(harness.ROOT / "bench/peers")))
    commands = {"bench_attention": [FOLDER / "bench_attention", "--interactive"],
                "bench_step": [FOLDER / "bench_step", "--interactive"],
                "torch_attention": [sys.executable, stub],
                "broken": [sys.executable, "-c", "raise SystemExit(3)"]}
    found = process.Programs(commands, tmp_path / "logs")
    yield found
    found.close()


def run(name, *arguments):
    words = [str(FOLDER / name), *map(str, arguments)]
    return harness.finish(harness.start(words))


def test_the_launcher_lists_what_it_can_run():
    told = harness.finish(harness.start([str(harness.ROOT / "bench/run"), "--help"])).out
    listed = {line.split()[0] for line in told.splitlines() if line.startswith("  ")}
    bench = harness.ROOT / "bench"
    assert listed == {path.name for path in bench.iterdir() if path.is_symlink()} and listed
    unknown = harness.finish(harness.start([str(bench / "run"), "nothing"]))
    assert unknown.code == 1 and "unknown benchmark 'nothing'" in unknown.err


@pytest.mark.parametrize("name, arguments", [
    ("bench_attention", ["--documents", "100,7", "--pass", "backward", "--task", 32]),
    ("bench_step", ["--documents", "40,24", "--layers", 1, "--d-model", 32, "--heads", 2,
                    "--kv-heads", 1, "--ffn", 48, "--vocab", 100]),
])
def test_command_line(name, arguments):
    result = run(name, *arguments, "--warm-up", 1, "--repetitions", 3)
    assert result.code == 0, result
    found = json.loads(result.out)
    seconds = found["measured"]["seconds"]
    assert len(seconds["samples"]) == seconds["count"] == 3
    order = [seconds[key] for key in ("min", "lower_quartile", "median", "upper_quartile", "max")]
    assert order == sorted(order) and order[0] > 0
    assert found["measured"]["gflops"] == pytest.approx(
        found["measured"]["flops"] / seconds["median"] / 1e9)
    assert found["share_of_limit"] == pytest.approx(
        found["measured"]["gflops"] / found["limit"]["gflops"])
    assert found["threads"] == 1 and found["peak_rss_bytes"] > 0


@pytest.mark.parametrize("arguments, complaint", [
    (["--dtype", "float8"], "dtype: found float8"),
    (["--pass", "sideways"], "pass: found sideways"),
    (["--heads", 4, "--kv-heads", 3], "kv_heads"),
    (["--documents", "4,0"], "documents"),
    (["--heads", "many"], "--heads"),
    (["--kernel", "abacus"], "kernel: found abacus; valid: auto, "),
    (["--kernel", "mma"], "attention.kernel: found mma; valid for float32 here: auto, "),
])
def test_bad_arguments(arguments, complaint):
    result = run("bench_attention", *arguments)
    assert result.code == 2 and complaint in result.err, result


@pytest.mark.parametrize("direction, ratio", [("forward", 1.0), ("backward", 2.5)])
def test_attention_flops(programs, direction, ratio):
    bench = programs.shared("bench_attention", 1)
    work = {**ATTENTION, "pass": direction, "dtype": "float32"}
    flops = bench.ask({"prepare": "it", "work": work})["flops"]
    assert flops == ratio * 2 * (100**2 + 1 + 70**2) * 64 * 4
    answer = bench.ask({"run": "it", "calls": 3})
    assert answer["seconds"] > 0 and answer["kernel"] != "auto"


def test_step_learns(programs):
    bench = programs.shared("bench_step", 1)
    bench.ask({"prepare": "it", "work": {**STEP, "dtype": "float32"}})
    answers = [bench.ask({"run": "it"}) for _ in range(12)]
    assert answers[0]["tokens"] == 64 and answers[0]["peak_rss_bytes"] > 0
    assert answers[-1]["loss"] < answers[0]["loss"]


def test_bfloat16(programs):
    """Runs, or says why not; the limit of a size that costs nothing."""
    bench = programs.shared("bench_attention", 1)
    limit = {"prepare": "limit", "work": {"kind": "limit", "dtype": "bfloat16", "size": 64}}
    try:
        bench.ask(limit)
    except process.ProgramError as error:
        assert str(error) == "limit: oneDNN multiplies no bfloat16 on this processor"
    try:
        bench.ask({"prepare": "it", "work": {**ATTENTION, "pass": "backward", "dtype": "bfloat16"}})
    except process.ProgramError as error:
        assert "AVX2" in str(error)
    else:
        assert bench.ask({"run": "it"})["seconds"] > 0


def test_errors_are_answers(programs):
    bench = programs.shared("bench_attention", 1)
    for request in ({"run": "nothing"}, {"prepare": "x", "work": {"heads": 1}}, {"what": 1}):
        with pytest.raises(process.ProgramError):
            bench.ask(request)
    assert bench.ask({"release": "nothing"}) == {}


def test_measure_with_a_peer(programs):
    work = {**ATTENTION, "pass": "forward", "dtype": "float32"}
    sides = {"ours": cases.Side("bench_attention", work),
             "torch": cases.Side("torch_attention", work, own_process=True)}
    record = measure.measure(programs, cases.Case("it", 1, sides, most=4, shape=work))
    assert {len(side["seconds"]) for side in record["sides"].values()} == {4}
    assert record["sides"]["torch"]["flops"] == 1e6
    assert record["sides"]["torch"]["report"]["peer"] == 4
    json.dumps(record)


def test_a_program_that_ends(programs):
    with pytest.raises(process.ProgramError, match="ended with 3"):
        programs.shared("broken", 1).ask({"run": "x"})


def test_alternation():
    order = []

    def side(name, seconds):
        return lambda: order.append(name) or seconds

    samples = sampling.alternate({"a": side("a", 1.0), "b": side("b", 2.0), "c": side("c", 3.0)},
                                 budget=10, most=4, rivals=("b", "c"))
    assert "".join(order) == "abc" + "ba" + "ab" + "ba"  # c is the slower rival
    assert samples == {"a": [1.0] * 4, "b": [2.0] * 4, "c": [3.0, None, None, None]}
    assert sampling.ratio(samples["c"], samples["a"]) == 3.0


def test_ratios_are_of_neighbours():
    """A machine that turns four times slower in between changes no ratio."""
    assert sampling.ratio([1.0, 4.0, 4.0], [2.0, 8.0, 8.0]) == 0.5
    sides = {"ours": {"flops": 2.0, "seconds": [1.0, 4.0]},
             "limit": {"flops": 8.0, "seconds": [2.0, 8.0]}}
    assert table.rate_ratio(sides, "ours", "limit") == 0.5


def canned():
    """Records of every case of the full table, all targets met."""
    records = {}
    for case in cases.cases(set(table.ROWS), [1, 2], cases.FULL):
        sides = {}
        for name in case.sides:
            report = {"peak_rss_bytes": 100 if name == "ours" else 200}
            sides[name] = {"flops": 1.0, "seconds": [1 / RATES.get(name, 0.89)] * 3,
                           "report": report}
        records[case.key] = {"name": case.name, "threads": case.threads, "sides": sides}
    return records


def verdicts(records):
    lines = table.make(records, [1, 2], cases.FULL)[2:]
    assert len(lines) == len(table.LINES)
    return [line.rsplit("|", 2)[1].strip() for line in lines]


def test_table_met():
    assert set(verdicts(canned())) == {"met"}


@pytest.mark.parametrize("key, side, slower, row", [
    ("attention/forward/d128/s8192/g1/t2", "ours", 1.2, "forward"),
    ("attention/backward/d64/s65536/g1/t1", "ours", 1.2, "backward"),
    ("attention/backward/d64/s1024/g4/t1", "ours", 2.0, "sdpa"),
    ("packed/float32/forward/d64/t1", "ours", 3.0, "packed"),
    ("cut/float32/backward/d128/t2", "task 128", 1.2, "cut"),
    ("bfloat16/forward/d64/s4096/g4/t2", "ours", 10.0, "bfloat16"),
    ("step/B/bfloat16/t2", "ours", 1.4, "step"),
    ("llm.c/t1", "ours", 2.0, "llm.c"),
    ("attention/forward/d64/s65536/g1/t1", "ours", 1.12, "growth"),
])
def test_table_planted_miss(key, side, slower, row):
    records = canned()
    seconds = records[key]["sides"][side]["seconds"]
    seconds[:] = [slower * value for value in seconds]
    missed = {line.row for line, found in zip(table.LINES, verdicts(records)) if found != "met"}
    assert row in missed
    # Rows that rest on the same shapes may miss too; the others do not.
    shared = {"forward", "backward", "sdpa", "growth"}
    assert missed <= (shared if row in shared else {row})


def test_table_planted_memory():
    records = canned()
    records["step/A/float32/t1"]["sides"]["ours"]["report"]["peak_rss_bytes"] = 130
    missed = [line.what for line, found in zip(table.LINES, verdicts(records)) if found != "met"]
    assert missed == ["peak memory of step A float32 / PyTorch's lower of eager and compiled"]


def test_table_without_a_case():
    records = canned()
    del records["packed/float32/forward/d64/t1"]
    records["llm.c/t1"] = {"name": "llm.c", "threads": 1, "error": "no checkout"}
    found = [verdict for verdict in verdicts(records) if verdict != "met"]
    assert found == ["not run", "not run: no checkout"]


def test_compare(tmp_path, monkeypatch, capsys):
    """The whole program on a tiny extent: a table, samples, and cases kept the second time."""
    tiny = cases.Extent(limit_lengths=(64,), longest_packed=128, most_seconds=0.01)
    monkeypatch.setattr(compare, "QUICK", tiny)
    monkeypatch.setattr(cases, "HEAD_DIMS", (64,))
    monkeypatch.setattr(compare, "PEERS", tmp_path)  # no PyTorch here: its side fails, others run
    output = tmp_path / "results.json"
    arguments = ["--quick", "--threads", "1", "--rows", "forward,packed", "--programs",
                 str(FOLDER), "--output", str(output)]
    compare.main(arguments)
    first = capsys.readouterr()
    assert "forward float32 / limit, head_dim 64" in first.out
    assert "not run: " in first.out and "torch_attention.py ended" in first.out
    results = json.loads(output.read_text())
    sides = results["cases"]["attention/forward/d64/s64/g1/t1"]["sides"]
    assert len(sides["ours"]["seconds"]) == len(sides["limit"]["seconds"]) >= 3
    assert results["host"]["cores"] == len(os.sched_getaffinity(0))
    compare.main(arguments)
    assert "attention/forward/d64/s64/g1," not in capsys.readouterr().err


@pytest.mark.parametrize("rank", [0, 1])
def test_placement_mixes(rank):
    """Every mix fills both ranks' microbatches exactly, so that packing splits no document."""
    for lengths in placed.MIXES.values():
        ends = np.cumsum(lengths)
        assert (rank + 1) * placed.MICROBATCH in ends and ends[-1] == 2 * placed.MICROBATCH


def step_of(seconds, *computed):
    return {"seconds": seconds, "compute": [{"dense": 0.25 * c, "attention": 0.75 * c}
                                            for c in computed], "forward_bytes": 10}


def placement_records():
    """One mix with all targets met: the second round on a machine half as fast."""
    def record(seconds, *computed):
        rounds = [[step_of(f * seconds, *(f * c for c in computed))] * 3 for f in (1.0, 2.0)]
        return {"rounds": rounds, "planned_bytes": 10}
    mix = next(iter(placed.MIXES))
    records = {f"{mix}/{name}": record(1.2, 1.0, 1.0) for name in placed.BASELINES}
    records[f"{mix}/{placed.REFERENCE}"] = record(1.7, 1.7, 0.3)
    records[f"{mix}/{placed.CAD}"] = record(1.02, 1.0, 1.0)
    return mix, records


def test_placement_targets_met():
    _, records = placement_records()
    found = placed_table.targets(records)[2]
    assert "missed" not in found and found.count("met") == 3
    assert "| 1.70 | 1.020 met | 0.850" in found and "| 1.67 met | yes |" in found


@pytest.mark.parametrize("name, fault, said", [
    ("CAD", lambda step: step | {"seconds": 1.06 * step["seconds"]}, "1.081 missed"),
    ("ring", lambda step: step | {"seconds": 0.8 * step["seconds"]}, "1.062 (ring) missed"),
    ("colocated", lambda step: step | {"seconds": 0.7 * step["seconds"]}, "1.17 missed"),
    ("CAD", lambda step: step | {"forward_bytes": 11}, "NO"),
])
def test_placement_planted_miss(name, fault, said):
    mix, records = placement_records()
    record = records[f"{mix}/{name}"]
    record["rounds"] = [[fault(step) for step in steps] for steps in record["rounds"]]
    assert said in placed_table.targets(records)[2]


def test_placements(tmp_path, monkeypatch, capsys):
    """The whole program at a small size: traces read, bytes as planned, kept the second time."""
    monkeypatch.setattr(placed, "MODEL", {"layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2,
                                          "ffn": 48, "vocab": 259})
    monkeypatch.setattr(placed, "MICROBATCH", 1024)
    first = next(iter(placed.MIXES))
    monkeypatch.setitem(placed.MIXES, first, [1024] + [128] * 8)
    output = tmp_path / "results.json"
    names = ("colocated", "colocated, tensor 2", "zigzag ring", "CAD", "CAD, dedicated",
             "CAD, mixed, ping-pong")
    chosen = ",".join(str(1 + list(placed.PLACEMENTS).index(name)) for name in names)
    arguments = ["--program", str(harness.PROGRAM), "--output", str(output), "--rounds", "1",
                 "--mixes", "1", "--placements", chosen]
    placements.main(arguments)
    printed = capsys.readouterr()
    results = json.loads(output.read_text())["cases"]
    for name in names:
        record = results[f"{first}/{name}"]
        assert len(record["rounds"][0]) == 2, record
        for step in record["rounds"][0]:
            assert step["forward_bytes"] == record["planned_bytes"]
            assert 0 < placed_table.bound(step) <= step["seconds"]
    assert results[f"{first}/CAD"]["planned_bytes"] > 0
    assert "| yes |" in printed.out and "bare loop of its kernels" in printed.out
    assert "peak memory of the largest rank" in printed.out
    placements.main(arguments)
    assert "round 1" not in capsys.readouterr().err


def test_unequal_ranks(tmp_path, capsys):
    """The whole program at a small size: a busy loop beside one rank, and what it simulates."""
    path = tmp_path / "e.yaml"
    path.write_text((harness.ROOT / "bench/benchmarks/unequal_ranks.yaml").read_text()
                    .replace("8192", "512").replace("16384", "1024"))
    unequal.main(["--program", str(harness.PROGRAM), "--output", str(tmp_path / "runs"),
                  "--experiment", str(path), "--rounds", "1", "--steps", "2"])
    printed = capsys.readouterr().out
    for case in unequal.CASES:
        assert f"| {case} | " in printed
    assert "real gain / simulated gain: " in printed
