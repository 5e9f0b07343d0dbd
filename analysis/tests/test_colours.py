# SPDX-License-Identifier: Apache-2.0
"""Colours of a picture differ for everybody: CIE distances, also as dichromats see them."""

import itertools

import numpy as np
import pytest

from cadenza import colours
from cadenza.report import style

# What is left of linear RGB without one kind of cone: Machado, Oliveira and Fernandes (2009).
SEEN = {
    "all": np.eye(3),
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                     [-0.003882, -0.048116, 1.051998]],
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                       [-0.011820, 0.042940, 0.968881]],
    "no blue cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                      [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041]])
SETS = {
    "parts and messages": colours.LABEL_COLOURS, "memory": colours.MEMORY_COLOURS,
    "phases": colours.PHASE_COLOURS, "bubbles": colours.BUBBLE_COLOURS,
    "runs": dict(enumerate(colours.RUN_COLOURS)),
}
PAPERS = {"light": "#ffffff", "dark": style.DARK[style.GAP]}


def lab(colour, seen):
    """CIE L*a*b* of #rrggbb."""
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    ratio = XYZ @ np.clip(np.array(SEEN[seen]) @ linear, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one, other, seen):
    return float(np.linalg.norm(lab(one, seen) - lab(other, seen)))


def test_distances():
    assert distance("#000000", "#ffffff", "all") == pytest.approx(100, abs=0.1)
    red_and_green = ("#a01f1f", "#4f5a17")
    assert distance(*red_and_green, "no red cones") < 0.4 * distance(*red_and_green, "all")


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("name", SETS)
def test_colours_of_a_picture_differ(name, seen):
    """Colours that differ by 10 are told apart side by side; small bars far apart need more."""
    pairs = itertools.combinations(SETS[name].items(), 2)
    near = [(a, b, round(distance(x, y, seen), 1)) for (a, x), (b, y) in pairs
            if distance(x, y, seen) < 15]
    assert near == []


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("name", SETS)
def test_colours_differ_from_the_paper(name, paper):
    near = [label for label, colour in SETS[name].items()
            for seen in SEEN if distance(colour, PAPERS[paper], seen) < 15]
    assert near == []


def test_dark_paper_changes_no_colour_of_data():
    data = {colour for one in SETS.values() for colour in one.values()}
    assert not data & set(style.DARK)
