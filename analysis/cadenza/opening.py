# SPDX-License-Identifier: Apache-2.0
"""A run folder, or a folder of traces that other programs wrote, as a Run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cadenza.log import LOG
from cadenza.read.run import Run, holds_run


def open_run(path: str | Path, whole: bool = False) -> Run:
    """Opens a run folder. Only headers are read here; frames are read when asked for.

    Traces of other programs (a file, or a folder of them) are imported into a folder that is there
    as long as the run is; `cadenza-analyze import` keeps one.

    @param whole  reads all files to their end, for damage in the middle of one: such a rank is left
                  out of all frames. Without it, the frame that meets it is a DamagedError
    """
    path = Path(path)
    if not path.exists() or holds_run(path):
        return Run(path, whole)
    from cadenza.sources.finding import sources_in  # takes a while to load
    from cadenza.sources.importing import import_run

    if not sources_in(path):
        return Run(path, whole)
    folder = tempfile.TemporaryDirectory(prefix="cadenza-")
    LOG.info("%s: importing, for this once", path)
    name = path.resolve().stem if path.is_file() else path.resolve().name
    imported = Path(folder.name) / (name or "run")
    import_run([path], imported)
    return Run(imported, whole, keep=folder)
