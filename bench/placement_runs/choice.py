# SPDX-License-Identifier: Apache-2.0
"""Mixes and placements on the command line: by number or name."""

import argparse


def names(known):
    def parse(text):
        chosen = [list(known)[int(word) - 1] if word.isdigit() and 0 < int(word) <= len(known)
                  else word for word in text.split(",")]
        unknown = set(chosen) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(
                f"found {', '.join(sorted(unknown))}; valid: 1 to {len(known)}: {listed(known)}")
        return chosen
    return parse


def listed(known):
    return "; ".join(f"{i}: {name}" for i, name in enumerate(known, 1))
