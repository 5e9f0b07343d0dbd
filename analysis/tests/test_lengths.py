# SPDX-License-Identifier: Apache-2.0
"""Lengths of documents beside traces of other programs."""

import pytest
from neutral_traces import ddp, pipeline
from test_import import imported

from cadenza.errors import DataError
from cadenza.sources.importing import import_run


def test_lengths_of_documents(tmp_path):
    study, said = imported(tmp_path, ddp(2, steps=4, lengths={0: "4096,4096", 1: "8192"}))
    assert (study.steps["documents"] == 3).all() and (study.steps["tokens"] == 16384).all()
    assert not any("how long documents" in line for line in said)


def test_lengths_of_documents_from_a_file(tmp_path):
    file = tmp_path / "lengths.txt"
    lines = [f"{step} {rank} {length}" for step in range(4)
             for rank, length in ((0, "4096 4096"), (1, "8192"))]
    file.write_text("# step rank lengths\n\n" + "\n".join(lines) + "\n1 1 512  # one more\n")
    study, said = imported(tmp_path, ddp(2, steps=4), lengths=file)
    of_steps = study.steps[study.steps["rank"] == 0].set_index("step")
    assert of_steps["documents"].to_dict() == {1: 4, 2: 3, 3: 3}
    assert of_steps["tokens"].to_dict() == {1: 16896, 2: 16384, 3: 16384}
    assert not any("how long documents" in line for line in said)


@pytest.mark.parametrize(("lines", "said"), [
    ("99 0 512\n8 5 512\n",
     "No line of the file of lengths is of a rank and a step of the traces."),
    ("0 0 5\n1 0 5\n2 0 5\n3 0 5\n0 1 5\n3 1 5\n7 1 5\n",
     "The file of lengths has no line for step 1 of rank 1 and 1 more.")])
def test_lengths_that_do_not_fit_the_traces(tmp_path, lines, said):
    file = tmp_path / "lengths.txt"
    file.write_text(lines)
    assert said in imported(tmp_path, ddp(2, steps=4), lengths=file)[1]


def test_stages_of_a_replica_have_the_same_documents(tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text("".join(f"{step} {rank} 100 20\n" for step in range(3) for rank in range(2)))
    study, said = imported(tmp_path, pipeline(6), lengths=file)
    assert study.ranks["pipeline"].tolist() == [0, 1]
    assert study.steps["tokens"].tolist() == [120, 120, 120, -1, -1, -1] * 2
    assert "How long documents were is told of 3 of 6 steps." in said


@pytest.mark.parametrize(("text", "said"), [
    ("", "no lengths in it"), ("# only words\n", "no lengths in it"),
    ("0 0 5\n1 0\n", "line 2: found '1 0'; valid: a line is: step rank length"),
    ("0 0 -5\n", "line 1: found '0 0 -5'"), ("0 0 4k\n", "line 1"), ("0 0 5.0\n", "line 1"),
    ("0 0 \u0663\n", "line 1"), ("0 0 9 0\n", "a document of no token"),
    ("0 0 2147483647\n0 0 1\n", "line 2: step 0 of rank 0 has"), ("0 0 \x00\n", "line 1"),
    ("0 0 999999999999999999999999\n", "line 1"), ("\ud800", "cannot be read"),
    ("9" * (1 << 27), "more than 64 MiB")])
def test_files_that_are_no_lengths(tmp_path, text, said):
    file = tmp_path / "lengths.txt"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=said):
        imported(tmp_path, ddp(2, steps=4), lengths=file)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        import_run([tmp_path / "traces"], tmp_path / "run", lengths=tmp_path / "none")
    with pytest.raises(DataError, match="not a file"):
        import_run([tmp_path / "traces"], tmp_path / "run", lengths=tmp_path)
