# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of a run, beside what was planted in it."""

import cadenza
import numpy as np

CAUSES = {"slow": ("slow", "no core"), "late data": ("input",)}


def judge(folder, kind, truth):
    """@returns rank, phase and cause, each whether it is right; `outside` alone where the pause was
    between two steps, where nothing is recorded"""
    study = cadenza.Study(cadenza.open(folder / "run"))
    if kind != "pause":
        return persistent_fault(study, kind, truth)
    place = place_of(study, truth)
    if place is None:
        return {"outside": True}
    found = study.stragglers
    found = found[found["why"] == "paused"]
    if found.empty:
        return {"rank": False, "phase": False, "cause": False, "planted": planted(truth, place)}
    worst = found.loc[found["late_seconds"].idxmax()]
    return {
        "rank": bool(worst["rank"] == truth["victim"] and worst["step"] == place[0]),
        "phase": bool(worst["phase"] == place[1]),
        "cause": True,
        "said": f"step {worst['step']}, {worst['phase']}: {worst['explanation']}",
        "planted": planted(truth, place),
    }


def planted(truth, place):
    return f"step {place[0]}, {place[1]}: rank {truth['victim']}, {place[2]}"


def persistent_fault(study, kind, truth):
    """One that is there in all steps: the verdict that saves most. There is no phase to be right
    about."""
    first = next(iter(study.verdicts.to_dict("records")), None)
    return {
        "rank": first is not None and first["members"] == [truth["victim"]],
        "cause": first is not None and first["cause"] in CAUSES[kind],
        "said": first["sentence"] if first else "nothing",
        "planted": f"rank {truth['victim']}",
    }


def place_of(study, truth):
    """Step and phase of a pause, and the operation that it fell into; None where it was mostly
    between two steps."""
    file = study.run.files[truth["victim"]]
    pause = file.to_global(np.array([truth["begin_ns"], truth["end_ns"]]))
    steps = study.steps[study.steps["rank"] == truth["victim"]]
    inside = overlap(steps, pause)
    if inside.max() < (pause[1] - pause[0]) / 2:
        return None
    step = int(steps["step"].iloc[inside.argmax()])
    events = study.run.events(ranks=[truth["victim"]], steps=[step])
    events = events[events["lane"] != "communication"]
    took = events["end_ns"] - events["begin_ns"]
    events = events.assign(inside=overlap(events, pause), took=took)
    found = events.sort_values(["inside", "took"], ascending=[False, True]).iloc[0]
    phase = str(found["phase"])
    return step, "backward" if phase == "recompute" else phase, str(found["name"])


def overlap(frame, pause):
    """ns of each row's time within the pause."""
    begin, end = frame["begin_ns"].to_numpy(), frame["end_ns"].to_numpy()
    return np.minimum(end, pause[1]) - np.maximum(begin, pause[0])
