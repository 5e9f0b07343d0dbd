# SPDX-License-Identifier: Apache-2.0
"""The notebook of analysis/ runs from its first cell to its last, and is committed as it ran."""

import os
import re

import pytest

import harness

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed here")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed here")
pytest.importorskip("ipykernel", reason="ipykernel is not installed here")
pytest.importorskip("cadenza", reason="the package analysis/ is not installed here")

NOTEBOOK = harness.ROOT / "analysis/notebooks/tour.ipynb"


def simulated(folder):
    """The runs that the notebook's first cell asks for, by the command that is in it."""
    text = nbformat.read(NOTEBOOK, as_version=4).cells[0].source
    settings = re.findall(r"--set (\S+=[^\s$]+)(?=\s)", text)
    assert len(settings) >= 6
    for placement in ("colocated", "cad"):
        words = ["simulate", "inputs/paper/base.yaml", "--output", folder / placement, "--trace",
                 "full", "--steps", "8"]
        for setting in [*settings, f"attention.placement={placement}"]:
            words += ["--set", setting]
        harness.run_well(1, words, cwd=harness.ROOT)


def numbers_of(notebook):
    """What every cell printed, without how it was laid out."""
    texts = [output.get("text") or output["data"].get("text/plain", "")
             for cell in notebook.cells for output in cell.get("outputs", [])]
    return [sorted(re.findall(r"\d+\.\d+", text)) for text in texts]


def test_tour(tmp_path, monkeypatch):
    simulated(tmp_path)
    monkeypatch.setenv("CADENZA_TOUR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", f"{harness.ROOT}/analysis:{os.environ.get('PYTHONPATH', '')}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    committed = numbers_of(notebook)
    nbclient.NotebookClient(notebook, timeout=harness.TIMEOUT, kernel_name="python3",
                            record_timing=False).execute()
    nbformat.write(notebook, tmp_path / "tour.ipynb")
    assert numbers_of(notebook) == committed, f"what it prints now is in {tmp_path / 'tour.ipynb'}"
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "stream"
            and output.name == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


def test_it_is_committed_as_it_ran():
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells
             if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert NOTEBOOK.stat().st_size < 300_000
    assert not re.search(r"/(home|root|work|tmp)/", NOTEBOOK.read_text())
