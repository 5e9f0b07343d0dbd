# SPDX-License-Identifier: Apache-2.0
"""Command lines: what they all look like, and the options that several benchmarks have."""

import argparse
import shlex
from pathlib import Path

from lib.host import ROOT

SHARED = {
    "--program": {"type": Path, "metavar": "FILE", "default": ROOT / "build/release/cadenza",
                  "help": "a cadenza that is built already; what no option names is built first"},
    "--under": {"type": shlex.split, "metavar": "WORDS", "default": [],
                "help": "what mpirun is started with, such as 'nice -n -20'"},
    "--fresh": {"action": "store_true", "help": "measure again what is in the output file"},
}


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Says the defaults that there are."""

    def _get_help_string(self, action):
        return super()._get_help_string(action) if action.default else action.help


def parser(name, description, *shared):
    """The parser of bench/NAME, with some of SHARED."""
    made = argparse.ArgumentParser(prog=f"bench/{name}", description=description,
                                   formatter_class=Help)
    for option in shared:
        made.add_argument(option, **SHARED[option])
    return made


def choice(known):
    """Arguments of an option that takes some of `known`, by number or name, or all of them."""
    def parse(text):
        words = list(known) if text == "all" else text.split(",")
        chosen = [list(known)[int(word) - 1] if word.isdigit() and 0 < int(word) <= len(known)
                  else word for word in words]
        unknown = set(chosen) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(
                f"found {', '.join(sorted(unknown))}; valid: 1 to {len(known)}: {listed}")
        return chosen

    listed = "; ".join(f"{i}: {name}" for i, name in enumerate(known, 1))
    return {"type": parse, "default": "all", "metavar": "N,...", "help": f"of {listed}"}
