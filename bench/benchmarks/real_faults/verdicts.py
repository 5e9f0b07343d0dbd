# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of a run, beside what was planted in it."""

import cadenza
import numpy as np

CAUSES = {"pause": ("paused",), "slow": ("slow", "no core"), "late data": ("input",),
          "pause between": ("paused",), "busy core": ("no core",), "late start": ("late start",)}
BETWEEN = "between steps"
NO_CORE = "no core"
_LATE = 0.05  # s: less is no late start that was planted


def judge(folder, kind, truth):
    """@returns who, phase, cause and time, each whether it is right, where it was planted;
    `outside` alone where a pause fell between two steps, one between them into one, or a late start
    before clocks were compared"""
    study = cadenza.Study(cadenza.open(folder / "run"))
    found = study.verdicts.to_dict("records")
    rest = [one for one in found if not beside(study, kind, one)]
    said = {"said": [one["sentence"] for one in found], "waits": truth["waits"],
            "others": len(rest[1:])}
    if kind == "clean":
        return {"silent": not found, "true": not rest, **said}
    expected = EXPECTED[kind](study, truth)
    if expected is None:
        return {"outside": True}
    phase, steps = expected
    first = rest[0] if rest else None
    right = {
        "who": first is not None and first["members"] == truth["ranks"],
        "cause": first is not None and first["cause"] in CAUSES[kind],
    }
    if phase:
        right["phase"] = first is not None and first["phase"] == phase
    if steps:
        right["time"] = first is not None and first["steps"] in steps
    planted = f"rank {truth['ranks']}, {phase or 'all phases'}, one of steps {steps or 'all'}"
    return {**right, "planted": planted, **said}


def beside(study, kind, verdict):
    """Whether a verdict is of what is there without the fault: on a shared machine other programs
    take cores. A rank that sleeps where clocks are compared before a step holds up all of them,
    which is a pause."""
    if verdict["cause"] == NO_CORE:
        return verdict["kind"] == "all" or kind not in ("slow", "busy core")
    if kind != "late start" or verdict["cause"] != "paused":
        return False
    events = study.events
    return set(verdict["steps"]) <= set(events["step"][events["name"] == "measure_clock"])


# --- @returns the phase, or "", and the lists of steps that are right, or none; None: see judge ---


def of_pause(study, truth):
    place = place_of(study, truth, truth["ranks"][0])
    return place and (place[1], [[place[0]]])


def of_pause_between(study, truth):
    if any(place_of(study, truth, rank) for rank in truth["ranks"]):
        return None
    begins = study.steps[study.steps["rank"] == truth["ranks"][0]]
    end = on_clock(study, truth["ranks"][0], truth["end_ns"])
    after = begins["step"][begins["begin_ns"] > end - (truth["end_ns"] - truth["begin_ns"]) / 2]
    return BETWEEN, [[int(after.min())]]


def of_busy_core(study, truth):
    """From the step on in which the loop began, or from the next."""
    begin = on_clock(study, truth["ranks"][0], truth["begin_ns"])
    ends = study.step_times.set_index("step")["end_ns"]
    steady = [step for step in study.steady_steps if ends[step] > begin]
    return "", [steady, steady[1:]]


def of_late_start(study, truth):
    """The steps that it began later than the other rank, which the delay before clocks are compared
    is not: both wait for that. None: it began none late."""
    begin = study.steps.pivot_table(index="step", columns="rank", values="begin_ns") / 1e9
    late = begin[truth["ranks"][0]] - begin.min(axis=1)
    steps = [int(step) for step in study.steady_steps if late[step] > _LATE]
    return (BETWEEN, [steps]) if steps else None


EXPECTED = {"pause": of_pause, "slow": lambda *_: ("", []), "late data": lambda *_: ("", []),
            "pause between": of_pause_between, "busy core": of_busy_core,
            "late start": of_late_start}


def on_clock(study, rank, moment):
    """A moment on a rank's clock, on that of the frames."""
    return study.run.files[rank].to_global(np.array([moment]))[0]


def place_of(study, truth, rank):
    """Step and phase of a pause, and the operation that it fell into; None where it was mostly
    between two steps."""
    file = study.run.files[rank]
    pause = file.to_global(np.array([truth["begin_ns"], truth["end_ns"]]))
    steps = study.steps[study.steps["rank"] == rank]
    inside = overlap(steps, pause)
    if inside.max() < (pause[1] - pause[0]) / 2:
        return None
    step = int(steps["step"].iloc[inside.argmax()])
    events = study.run.events(ranks=[rank], steps=[step])
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
