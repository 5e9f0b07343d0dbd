# SPDX-License-Identifier: Apache-2.0
"""run.transport changes when bytes move and in which order, never which."""

import numpy as np
import pytest

import harness
from test_attend import attend, random_input
from test_layouts import LAYOUTS, STEPS, experiment_of

# Between them: attention's messages, streams, collectives of tensor groups, sums of gradients,
# shares of the optimizer.
TRANSPORTS = ("mpi", "staged", "nccl")  # nccl: emulated in a build for the host
TRAINED = ("cad-2-2-2-sharded", "all-four-axes-but-data", "cad-2-and-1-server")


@pytest.mark.parametrize("layout", TRAINED)
def test_training_has_the_same_bits(layout, corpus, tmp_path):
    changes = harness.merged(experiment_of(LAYOUTS[layout], corpus), {"run": {"dtype": "float64"}})
    runs = {}
    for transport in TRANSPORTS:
        words = harness.merged(changes, {"run": {"transport": transport}})
        runs[transport] = harness.train(tmp_path / transport, words)
    for transport in TRANSPORTS[1:]:
        for column in ("loss", "gradient_norm", "bytes_moved"):
            np.testing.assert_array_equal(
                runs[transport].column(column), runs["mpi"].column(column), err_msg=column
            )
        found, expected = (runs[name].checkpoint(STEPS) for name in (transport, "mpi"))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_attention_has_the_same_bits(tmp_path):
    arrays = random_input(5, 4, 2, 32)
    found = []
    for transport in TRANSPORTS:
        folder = tmp_path / transport
        folder.mkdir()
        layout = {
            "parallel": {"data": 3},
            "attention": {"placement": "cad"},
            "run": {"transport": transport},
        }
        found.append(attend(folder, layout, arrays))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, value in found[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_run_names_what_was_asked_for(transport, tmp_path):
    experiment = harness.write_experiment(
        tmp_path / "experiment.yaml",
        {"data": {"source": "synthetic"}, "parallel": {"data": 2},
         "run": {"steps": 1, "transport": transport}},
    )
    words = ["train", experiment, "--output", tmp_path / "run"]
    assert f"transport {transport}: " in harness.run_well(2, words).out
    alone = harness.run_well(1, [*words, "--set", "parallel.data=1"])
    assert "transport" not in alone.out, "a single rank sends nothing"


def test_nothing_is_said_where_tensors_are_the_hosts(tmp_path):
    experiment = harness.write_experiment(
        tmp_path / "experiment.yaml", {"data": {"source": "synthetic"}, "run": {"steps": 1}}
    )
    result = harness.run_well(1, ["train", experiment, "--output", tmp_path / "run"])
    assert "transport" not in result.out


def test_another_word_is_refused(tmp_path):
    experiment = harness.write_experiment(
        tmp_path / "experiment.yaml",
        {"data": {"source": "synthetic"}, "run": {"transport": "pigeon"}},
    )
    result = harness.run(1, ["train", experiment, "--output", tmp_path / "run"])
    assert result.code == harness.USAGE
    assert "run.transport: found pigeon" in result.err
    assert "valid: auto, nccl, mpi, staged" in result.err
