# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import tempfile
from collections import Counter

import numpy as np
import pytest

import harness


# Modules that measure times or pin threads: nothing else runs beside them.
ALONE = {"test_bench", "test_bench_simulation", "test_calibrate", "test_pauses", "test_threads"}

# The modules that take longest, the longest first; those with most tests follow. Begun at the end,
# one would run alone. xdist keeps this order with --no-loadscope-reorder.
LONGEST = (
    "test_pages", "test_report", "test_tensor_core_binaries", "test_equal_bits", "test_signals",
    "test_choose", "test_quickstart",
)

# What few changes touch: the tooling of bench, Slurm, devices and the paper, and two hosts.
THOROUGH = {
    "test_bench", "test_bench_simulation", "test_clusters", "test_gpu_check", "test_notebook",
    "test_paper", "test_slurm", "test_two_hosts",
}


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="run the tests marked thorough, too")


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: nothing else may run beside it")
    config.addinivalue_line("markers", "thorough: only scripts/test --thorough runs it")


def pytest_collection_modifyitems(config, items):
    left_out = pytest.mark.skip(reason="scripts/test --thorough runs it")
    for item in items:
        if item.path.stem in ALONE:
            item.add_marker("alone")
        if item.path.stem in THOROUGH:
            item.add_marker("thorough")
        if item.get_closest_marker("thorough") and not config.getoption("thorough"):
            item.add_marker(left_out)
    counts = Counter(item.path for item in items)
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(item.path.stem, len(ranks)), -counts[item.path]))


def pytest_sessionstart(session):
    if not harness.PROGRAM.is_file():
        pytest.exit(
            f"{harness.PROGRAM} is not there: build it, or name it in CADENZA", returncode=1
        )
    if shutil.which("mpirun") is None:
        pytest.exit("mpirun is not on the path", returncode=1)
    # Of its own, as Open MPI fails where two runs make or remove its folder at the same moment.
    session.mpi_folder = tempfile.mkdtemp(prefix="mpi-")
    os.environ["OMPI_MCA_orte_tmpdir_base"] = session.mpi_folder  # noqa: SIM112


def pytest_sessionfinish(session):
    if hasattr(session, "mpi_folder"):
        shutil.rmtree(session.mpi_folder, ignore_errors=True)


@pytest.fixture(scope="session")
def documents():
    """Heavy-tailed lengths, from one token to more than a microbatch."""
    random = np.random.default_rng(11)
    lengths = np.clip(np.rint(random.lognormal(3.3, 1.2, 200)), 1, 600).astype(int)
    lengths[:8] = [90, 1, 2, 300, 1, 17, 128, 64]
    return harness.random_documents(5, lengths)


@pytest.fixture(scope="session")
def corpus(documents, tmp_path_factory):
    """`documents` as a flat file of uint16."""
    return harness.write_tokens(tmp_path_factory.mktemp("corpus") / "tokens.bin", documents)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed here", exc_type=ImportError
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"],
                                        timeout=harness.TIMEOUT * 1e3)
        yield found
        found.close()
