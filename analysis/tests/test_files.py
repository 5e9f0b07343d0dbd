# SPDX-License-Identifier: Apache-2.0
"""Files of others: pipes and devices in the place of files, links in the place of outputs, YAML."""

import os
import socket
import stat

import pytest

from cadenza.errors import DataError
from cadenza.files import made, printable, read_text, read_yaml, written

SWEEP = "name: s\naxes: {size: [1]}\n"
TABLE = ("size,status,reason,ranks,seconds,tokens,tokens_per_second,model_flops_utilization,"
         "attention_imbalance,attention_share,largest_memory_bytes\n1,ok,,1,1,1,1,0.5,1,0.5,1\n")


def put_pipe(path):
    os.mkfifo(path)


def put_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


def put_device(path):
    path.symlink_to("/dev/zero")


def put_folder(path):
    path.mkdir()


@pytest.mark.parametrize("put", [put_pipe, put_socket, put_device, put_folder])
@pytest.mark.parametrize("name", ["metrics.jsonl", "experiment.yaml", "sweep.csv", "sweep.yaml"])
def test_what_is_no_file_is_not_waited_for(name, put, run_folder, inside):
    (run_folder / "sweep.yaml").write_text(SWEEP)
    (run_folder / "sweep.csv").write_text(TABLE)
    command = "sweep" if name.startswith("sweep") else "summary"
    assert inside(command, run_folder).returncode == 0
    (run_folder / name).unlink()
    put(run_folder / name)
    done = inside(command, run_folder)
    assert done.returncode == 3 and f"{name}: not a file" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


OUTPUTS = [
    (("report", "{run}"), "report.html"),
    (("timeline", "{run}"), "timeline.png"),
    (("export", "{run}", "--format", "perfetto"), "trace.json.gz"),
    (("export", "{run}", "--format", "csv"), "csv"),
    (("export", "{run}", "--format", "csv", "--output", "{run}"), "steps.csv"),
    (("sweep", "{run}"), "s-0.png"),
    (("sweep", "{run}", "--markdown", "{run}/t.md"), "t.md"),
]


@pytest.mark.parametrize(("words", "name"), OUTPUTS)
@pytest.mark.parametrize("leads_to", ["file", "nothing"])
def test_nothing_is_written_where_a_link_leads(words, name, leads_to, run_folder, inside):
    """Somebody else's folder may hold a link to a file of whoever looks at it."""
    view = "report: [{title: t, value: seconds, x: size}]\n"
    (run_folder / "sweep.yaml").write_text(SWEEP + view)
    (run_folder / "sweep.csv").write_text(TABLE)
    mine = run_folder.parent / "mine"
    if leads_to == "file" and name == "csv":
        mine.mkdir()
    elif leads_to == "file":
        mine.write_text("precious")
    (run_folder / name).symlink_to(mine)
    done = inside(*(word.replace("{run}", str(run_folder)) for word in words))
    assert done.returncode == 3 and f"{name}: is a link to {mine}" in done.stderr, done.stderr
    if leads_to == "nothing":
        assert not mine.exists()
    else:
        assert not any(mine.iterdir()) if mine.is_dir() else mine.read_text() == "precious"
    assert not list(run_folder.glob(".*"))


def test_an_output_is_replaced_when_all_of_it_is_written(tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.link(path, other)
    with pytest.raises(KeyError), written(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2
    with written(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and other.read_bytes() == b"old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_outputs_that_are_no_files(tmp_path):
    with written(tmp_path / "../../../../../../../dev/null") as file:
        file.write(b"gone")
    os.mkfifo(tmp_path / "pipe")
    unread = pytest.raises(DataError, match="pipe: cannot be written: No such device")
    with unread, written(tmp_path / "pipe"):
        pass
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with written(tmp_path / "pipe") as file:
        file.write(b"through")
    (tmp_path / "link").symlink_to("pipe")  # as /dev/stdout is
    with written(tmp_path / "link") as file:
        file.write(b" again")
    assert os.read(reader, 99) == b"through again"
    os.close(reader)
    with pytest.raises(DataError, match="cannot be written: Is a directory"), written(tmp_path):
        pass
    missing = pytest.raises(DataError, match="cannot be written: No such file")
    with missing, written(tmp_path / "no" / "x"):
        pass
    with pytest.raises(DataError, match="cannot be written: File exists"):
        (tmp_path / "file").write_text("")
        made(tmp_path / "file")


def test_text_that_is_none(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="x: cannot be read: 'utf-8' codec"):
        read_text(tmp_path / "x")
    assert printable("a\x1b[31m\nb\u2028é") == "a\\x1b[31m\\nb\\u2028é"


YAML = {
    "a: 2001-99-99": {"a": "2001-99-99"},
    "a: !!int x": {"a": "x"},
    "a: !!timestamp x": {"a": "x"},
    "a: !!python/object:os.system x": {"a": "x"},
    "a: 1:99:99": {"a": "1:99:99"},
    "a: 0x10": {"a": "0x10"},
    "a: yes": {"a": "yes"},
    "a: '1'\nb: 1\nc: 1.5e3\nd: true\ne: ~\nf: 1e9": {"a": "1", "b": 1, "c": 1500.0, "d": True,
                                                     "e": None, "f": 1e9},
    "null: 1\n~: 2\n1: 3": {"null": 1, "~": 2, "1": 3},
    "x: &a [1]\ny: *a": {"x": [1], "y": [1]},
    "": {},
    "a: " + "9" * 5000: {"a": float("inf")},
}
NO_YAML = {
    "- 1": "found a list, expected a map of keys",
    "1": "found a int, expected a map of keys",
    "a: [": "not YAML: did not find expected node content",
    "? [a]\n: b": ":1: found a key that is a list or a map",
    "a: &a [*a]": ":1: found an alias inside its own anchor's value",
    'a: "\\e[31m"': ":1: found control characters",
    "a: \0": "control characters are not allowed",
    "[" * 100_000: "not YAML: exceeded maximum nesting depth",
    "x: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi",
                                                                    strict=True)
    ): "found more than 1048576 values, aliases written out",
    "a: " + "x" * 3_000_000: "found 3000003 characters; valid: at most 2097152",
}


@pytest.mark.parametrize("content", YAML, ids=lambda content: content[:20])
def test_yaml_is_read_as_the_program_reads_it(content):
    assert read_yaml("x.yaml", content) == YAML[content]


@pytest.mark.parametrize("content", NO_YAML, ids=lambda content: content[:10])
def test_no_yaml_is_one_line(content):
    with pytest.raises(DataError, match="x.yaml") as refused:
        read_yaml("x.yaml", content)
    assert NO_YAML[content] in str(refused.value) and "\n" not in str(refused.value)


def test_labels_are_the_text_that_stands_there():
    found = read_yaml("x", "a: [null, ~, nan, 0.10, 0x10, yes, 2001-01-01, '1']", typed=False)
    assert found == {"a": ["null", "~", "nan", "0.10", "0x10", "yes", "2001-01-01", "1"]}


@pytest.mark.parametrize("name", ["experiment.yaml", "metrics.jsonl", "evaluation.json",
                                  "sweep.csv", "rank-00000.h5"])
def test_the_runs_own_files_stay(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError, match="own file"), written(tmp_path / name) as file:
        file.write(b"page")
    assert (tmp_path / name).read_text() == "mine"
