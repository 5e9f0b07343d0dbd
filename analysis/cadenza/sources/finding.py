# SPDX-License-Identifier: Apache-2.0
"""Which files are traces, and of which source.

One rule for all sources: what no source claims, by its name and first bytes, is passed over and
named, as folders of traces hold other files, too. What one claims and cannot read may be a rank's
trace: it is left out, as the others are of use without it, but with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cadenza.errors import DataError, UsageError
from cadenza.files import printable
from cadenza.log import LOG
from cadenza.sources.known import SOURCES
from cadenza.sources.neutral import Source
from cadenza.words import shortened

_ENDINGS = {".json", ".gz", ".parquet", ".arrow", ".feather", ".sqlite"}  # of traces
NAMED, FEW = 60, 3  # letters of a name, and names of a sentence


def sources_in(path: Path) -> set[str]:
    """Names of the sources that read something there, at the first look."""
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    return {source.name for _, source in _claimed([path, *candidates], SOURCES)}


def files_in(
    inputs: Sequence[Path], name: str | None
) -> tuple[list[tuple[Path, Source]], list[str]]:
    """Each file that a source claims, and the source; and a sentence about those that are named
    like traces and are none.

    @param name  of the only source; None: any
    @throws DataError for an input without a trace, UsageError for an unknown source
    """
    known = [one for one in SOURCES if name in (None, one.name)]
    if not known:
        valid = ", ".join(one.name for one in SOURCES)
        raise UsageError(f"--from {name}: no such source; valid are {valid}")
    found: list[tuple[Path, Source]] = []
    others: list[str] = []
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        candidates = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
        mine = _claimed(candidates, known)
        if not mine:
            what = "; ".join(f"{one.name}: {one.what}" for one in known)
            raise DataError(f"{path}: no trace that can be read; valid: {what}")
        found += mine
        read = {file for file, _ in mine}
        others += [file.name for file in candidates if file.suffix in _ENDINGS and file.is_file()
                   and not read & {file, *file.parents}]
    return found, _counted("Files that are no traces, or damaged, are passed over", others)


def left_out(damaged: Mapping[Path, DataError]) -> list[str]:
    """Warns of files that a source claimed and could not read, and says it in a sentence."""
    for error in list(damaged.values())[:FEW]:
        LOG.warning("%s; continuing without it", error)
    if len(damaged) > FEW:
        LOG.warning("%d more traces cannot be read; continuing without them", len(damaged) - FEW)
    return _counted("Traces that cannot be read are left out", [path.name for path in damaged])


def _counted(what: str, names: Sequence[str]) -> list[str]:
    few = ", ".join(shortened(printable(one), NAMED) for one in names[:FEW])
    more = ", ..." if len(names) > FEW else ""
    return [f"{what}: {len(names)} ({few}{more})."] if names else []


def _claimed(paths: Iterable[Path], known: Sequence[Source]) -> list[tuple[Path, Source]]:
    found: list[tuple[Path, Source]] = []
    taken: set[Path] = set()  # folders that are one export
    for path in paths:
        if path.name.startswith(".") or taken & set(path.parents):
            continue
        source = next((one for one in known if _claims(one, path)), None)
        if source is not None:
            found.append((path, source))
            if path.is_dir():
                taken.add(path)
    return found


def _claims(source: Source, path: Path) -> bool:
    """No source claims what cannot be opened."""
    try:
        return source.claims(path)
    except (DataError, OSError):
        return False
