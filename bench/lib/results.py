# SPDX-License-Identifier: Apache-2.0
"""Results in a file, which a benchmark that was interrupted goes on with."""

import json


def load(options, fingerprint):
    """Cases that an earlier call with the same programs left in the file options.output."""
    if options.fresh or not options.output.is_file():
        return {}
    earlier = json.loads(options.output.read_text())
    return earlier["cases"] if earlier.get("programs") == fingerprint else {}


def save(path, results):
    """A benchmark that is interrupted while it writes loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1))
    part.replace(path)
