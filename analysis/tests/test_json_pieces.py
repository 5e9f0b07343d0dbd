# SPDX-License-Identifier: Apache-2.0
"""Chrome traces of any size: cut at the ends of events, read as far as they are sound."""

import gzip
import json
import random
from pathlib import Path

import kineto_files as k
import pytest

from cadenza.errors import DataError
from cadenza.sources import json_pieces
from cadenza.sources.json_pieces import ChromeTrace

HOSTILE = ("a{b", '"quoted"', "\\", '\\\\"', "}],[{", 'x"},{"y', "\n\t", "é\U0001f600", "},{",
           '"traceEvents":[', "]", "[[[", '{"ph":"X"}', "\\u0022", "}\n},\n{")


def read(path, piece=2 << 20, monkeypatch=None):
    if monkeypatch:
        monkeypatch.setattr(json_pieces, "PIECE", piece)
    trace = ChromeTrace(path)
    return [event for events in trace.pieces() for event in events], trace


def hostile(rng):
    return [{"name": "".join(rng.choices(HOSTILE, k=2)), "ts": at,
             "args": {"inner": [{"a": rng.choice(HOSTILE)}, {"b": [1, {}]}], "c": {}}}
            for at in range(rng.randrange(25))]


@pytest.mark.parametrize("seed", range(12))
def test_every_cut_is_right(seed, tmp_path, monkeypatch):
    """Names that look like JSON, in all layouts, as an object and as a bare list."""
    rng = random.Random(seed)
    events = hostile(rng)
    beside = {"head": rng.choice(HOSTILE), "list": [{"traceEvents": rng.choice(HOSTILE)}]}
    document = {**beside, "traceEvents": events, "tail": rng.choice(HOSTILE)}
    for text in (*k.layouts(document), *k.layouts(events)):
        for piece in (9, 200, 1 << 20):
            got, trace = read(k.write(tmp_path / "x.json", text), piece, monkeypatch)
            assert got == events and not trace.lost
            assert trace.beside == ({} if text.startswith("[") else
                                    {**beside, "tail": document["tail"]})


def test_a_file_that_is_cut_short_is_read_as_far_as_it_goes(tmp_path, monkeypatch):
    events = hostile(random.Random(5))
    text = json.dumps({"traceEvents": events})
    first = text.index("[") + 1
    for size in range(first, len(text) - 1, 11):
        got, trace = read(k.write(tmp_path / "x.json", text[:size]), 300, monkeypatch)
        assert got == events[: len(got)] and len(got) >= text[:size].count('"ts": ') - 1
        assert trace.lost
    assert "cut short" in trace.lost[0] or "behind the events" in trace.lost[0]


@pytest.mark.parametrize("damage", ["cut", "bytes"])
def test_damaged_compression_is_read_as_far_as_it_is_sound(damage, tmp_path):
    rng = random.Random(1)
    text = json.dumps([{"name": rng.random(), "ts": at} for at in range(20000)])
    data = bytearray(gzip.compress(text.encode()))
    if damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    (tmp_path / "x.json.gz").write_bytes(data)
    got, trace = read(tmp_path / "x.json.gz")
    assert 5000 < len(got) < 15000
    assert [event["ts"] for event in got[:5000]] == list(range(5000))
    assert any("compressed file is" in sentence for sentence in trace.lost)


def test_members_of_a_compressed_file_follow_one_another(tmp_path):
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b'[{"a":1},') + gzip.compress(b'{"a":2}]'))
    assert read(tmp_path / "x.json.gz")[0] == [{"a": 1}, {"a": 2}]


def test_what_is_no_json_is_mended_or_left_out(tmp_path):
    text = ('{"traceEvents": [{"a": NaN, "b": -inf, "c": [nan, Infinity]}, {"d": "x\ny\udcff"},'
            ' {"e": \\}, {"f": "\\q"}, {"g": 1}]}')
    got, trace = read(k.write(tmp_path / "x.json", text))
    assert got == [{"a": None, "b": None, "c": [None, None]}, {"d": "x y�"}, {"g": 1}]
    assert trace.lost == ["2 events left out: no JSON"]


def test_half_a_letter_costs_that_letter_alone(tmp_path):
    """Programs cut texts in the middle of a letter of two halves."""
    for text, letters in (
            (r"a\ud83d", "a\ufffd"), (r"\uDE00b", "\ufffdb"), (r"\ud83d\n\"", '\ufffd\n"'),
            (r"\ud83d\ude00\ud83d!", "\U0001f600\ufffd!"), (r"\\ud83d\ud83d", "\\ud83d\ufffd")):
        content = f'{{"host": "{text}", "traceEvents": [{{"name": "{text}"}}, {{"name": "x"}}]}}'
        trace = ChromeTrace(k.write(tmp_path / "x.json", content))
        assert list(trace.pieces()) == [[{"name": letters}, {"name": "x"}]]
        assert trace.beside == {"host": letters} and trace.lost == []


def test_long_times_keep_their_nanoseconds(tmp_path):
    text = '[{"name": "\\"ts\\": 1712195495519689.1", "ts": 1712195495519689.123}, {"ts":7.5}]'
    first, second = read(k.write(tmp_path / "x.json", text))[0]
    assert first == {"name": '"ts": 1712195495519689.1', "ts": 1712195495519689, "ts_part": 0.123}
    assert second == {"ts": 7.5}


def test_one_event_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(json_pieces, "LONGEST", 1 << 16)
    text = '{"traceEvents": [{"a": 1}, {"a": "' + "x" * (1 << 18) + '"}]}'
    got, trace = read(k.write(tmp_path / "x.json", text), 1 << 12, monkeypatch)
    assert got == [{"a": 1}] and "an event of more than" in trace.lost[0]


@pytest.mark.parametrize("text", [
    "", " ", "null", "7", '"traceEvents"', "\0\0\0", '{"traceEvents": 7}', '{"other": []}',
    "not JSON at all", '{"a": "' + "x" * (1 << 18), "PK\x03\x04", "<html>"])
def test_what_is_no_trace_is_refused_in_one_line(text, tmp_path, monkeypatch):
    monkeypatch.setattr(json_pieces, "LONGEST", 1 << 16)
    with pytest.raises(DataError, match="found no list traceEvents; valid: a Chrome trace"):
        read(k.write(tmp_path / "x.json", text), 1 << 12, monkeypatch)


def test_deep_nesting_and_too_many_events(tmp_path, monkeypatch):
    deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    got, trace = read(k.write(tmp_path / "x.json", f'[{{"b": 1}}, {deep}, {{"b": 2}}]'))
    assert got == [{"b": 1}, {"b": 2}] and trace.lost
    monkeypatch.setattr(json_pieces, "MOST", 1000)
    got, trace = read(k.write(tmp_path / "x.json", "[" + "{}," * 5000 + "{}]"), 300, monkeypatch)
    assert 1000 < len(got) < 1200 and "only the first" in trace.lost[0]


def test_a_missing_file():
    with pytest.raises(DataError, match="cannot be read"):
        read(Path("/nowhere/x.json"))
