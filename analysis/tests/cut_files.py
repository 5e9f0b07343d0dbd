# SPDX-License-Identifier: Apache-2.0
"""Usage: cut_files.py RUN_FOLDER RANK_FILE < SIZES

Cuts one of a run's rank files to every size of a JSON list, opens the run each time and prints, as
JSON, what each size led to: the complete steps that were found, or the error. A process of its own,
because HDF5 tries damaged metadata again and again: a caller's time limit is then the only end.
"""

import json
import subprocess
import sys
from pathlib import Path

import cadenza

LIMIT = 300  # seconds for some hundred sizes, of which each takes milliseconds on a calm machine


def opened(folder):
    try:
        run = cadenza.open(folder)
        steps, events = run.steps(), run.events()
    except cadenza.DataError as error:
        return {"error": str(error)}
    return {
        "truncated": run.truncated,
        "steps": steps["step"].unique().tolist(),
        "steps_with_events": events["step"].unique().tolist(),
    }


def look_at_cut_files(folder, path, sizes):
    """What the sizes led to, in their order, found by this program. The file stays as it was."""
    content = path.read_bytes()
    try:
        done = subprocess.run(
            [sys.executable, __file__, folder, path],
            input=json.dumps(sizes), capture_output=True, text=True, timeout=LIMIT, check=False,
        )
    finally:
        path.write_bytes(content)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(folder, path):
    content, sizes = Path(path).read_bytes(), json.load(sys.stdin)
    found = []
    for size in sizes:
        Path(path).write_bytes(content[:size])
        found.append(opened(folder))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
