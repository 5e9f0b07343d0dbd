# SPDX-License-Identifier: Apache-2.0
"""Event files, read by a parser that shares nothing with the writer."""

import struct

import numpy as np
import pytest
from conftest import two_ranks
from trace_files import write_run

import cadenza
from cadenza.errors import DataError, UsageError
from cadenza.formats import tensorboard
from cadenza.formats.export import export

STARTED = 1767225600  # s since 1970: what trace_files.py has as the begin of a run


def crc32c(content):
    """Bit by bit, as RFC 3720 defines it."""
    register = 0xFFFFFFFF
    for byte in content:
        for bit in range(8):
            register ^= byte >> bit & 1
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def unmasked(content):
    (found,) = struct.unpack("<I", content)
    found = (found - 0xA282EAD8) % 2**32
    return (found << 15 | found >> 17) % 2**32


def records(content):
    while content:
        (length,) = struct.unpack_from("<Q", content)
        assert unmasked(content[8:12]) == crc32c(content[:8])
        event, content = content[12 : 12 + length], content[12 + length :]
        assert unmasked(content[:4]) == crc32c(event)
        content = content[4:]
        yield event


def number(content):
    """A varint, and what follows."""
    found = shift = 0
    while True:
        found |= (content[0] & 127) << shift
        more, content, shift = content[0] > 127, content[1:], shift + 7
        if not more:
            return found, content


def fields(content):
    """[(number of a field, value)] of a message."""
    found = []
    while content:
        key, content = number(content)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value, content = number(content)
        else:
            if key & 7 == 2:
                size, content = number(content)
            value, content = content[:size], content[size:]
            assert len(value) == size
        found.append((key >> 3, value))
    return found


def scalars(path):
    """The version, and [(seconds, step, {tag: value})]."""
    events = [dict(fields(one)) for one in records(path.read_bytes())]
    found = []
    for event in events[1:]:
        (seconds,) = struct.unpack("<d", event[1])
        values = [dict(fields(value)) for field, value in fields(event[5]) if field == 1]
        numbers = {one[1].decode(): struct.unpack("<f", one[2])[0] for one in values}
        found.append((seconds, event.get(2, 0), numbers))
    return events[0][3], found


def test_the_checksum():
    """The check value of CRC-32C, and that of 32 zeros (RFC 3720, B.4)."""
    for content, known in ((b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA)):
        assert crc32c(content) == known == unmasked(tensorboard._checksum(content))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63 - 1])
def test_whole_numbers(value):
    assert number(tensorboard._varint(value) + b"x") == (value, b"x")


def test_what_the_metrics_have(run_folder, tmp_path, inside):
    lines = ['{"step": 0, "loss": 5.25, "tokens": 1e300, "gradient_norm": null, "é": -3}',
             '{"step": 1, "loss": 4.5, "tokens": 7, "recall_by_distance": [1], "word": "x",'
             ' "right": true}']
    (run_folder / "metrics.jsonl").write_text("\n".join(lines))
    done = inside("export", run_folder, "--format", "tensorboard")
    name = f"events.out.tfevents.{STARTED}.cadenza"
    path = run_folder / "tensorboard" / name
    assert done.returncode == 0 and done.stdout == f"{path}\n", done.stderr
    version, found = scalars(path)
    assert version == b"brain.Event:2"
    steps = cadenza.open(run_folder).steps()
    ends = steps.groupby("step")["end_ns"].max() - steps["begin_ns"].min()
    assert [step for _, step, _ in found] == [0, 1]
    assert [seconds for seconds, _, _ in found] == (STARTED + ends / 1e9).tolist()
    assert [values for _, _, values in found] == [
        {"loss": 5.25, "tokens": np.inf, "é": -3}, {"loss": 4.5, "tokens": 7}]
    again = export(cadenza.open(run_folder), "tensorboard", tmp_path / "t", steps=[1])
    assert again == [tmp_path / "t" / name] and scalars(again[0])[1] == found[1:]


def test_every_metric_of_a_run(run_folder, tmp_path):
    run = cadenza.open(run_folder)
    (path,) = export(run, "tensorboard", tmp_path / "t")
    frame = run.metrics()
    wanted = [{name: np.float32(value) for name, value in row.items() if name != "step"}
              for row in frame.to_dict("records")]
    assert [values for _, _, values in scalars(path)[1]] == wanted and len(wanted) == 2


def test_a_run_without_a_time(tmp_path, monkeypatch):
    run = cadenza.open(write_run(tmp_path / "r", two_ranks()))
    monkeypatch.setitem(run.info, "created_utc", "yesterday")
    (path,) = export(run, "tensorboard", tmp_path / "t")
    assert path.name == "events.out.tfevents.0000000000.cadenza"
    assert scalars(path)[1][0][0] == pytest.approx(1e-7)


def test_refused(run_folder, tmp_path, inside):
    done = inside("export", run_folder, "--format", "tensorboard", "--ranks", "0")
    assert done.returncode == 2 and "--ranks: found with format tensorboard" in done.stderr
    with pytest.raises(UsageError, match="no complete step 9"):
        export(cadenza.open(run_folder), "tensorboard", tmp_path / "t", steps=[9])
    for content in ("", '{"loss": 1}\n'):
        (run_folder / "metrics.jsonl").write_text(content)
        with pytest.raises(DataError, match=r"metrics\.jsonl: has no steps"):
            export(cadenza.open(run_folder), "tensorboard", tmp_path / "t")
    assert not (tmp_path / "t").exists()
