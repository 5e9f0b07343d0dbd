# SPDX-License-Identifier: Apache-2.0
"""Changed copies of YAML, JSON lines and CSV: of their values, so that most can still be parsed."""

import csv
import io
import json

import yaml

WORDS = (
    "", " ", "null", "None", "nan", "NA", "true", "~", "0x10", "1e3", "-", "inf", "{}", "{0}",
    "{x!r:>{y}}", "[/bold]", "[red]x", ":smile:", "$x_{$", "a|b", "<b>", "</script>", "\x1b[31m",
    "x\ny", "\u2028", "é", "../../x", "/", "2001-99-99", "1:99:99", "%s", "a" * 3000,
)
NUMBERS = (0, 1, -1, 2, 0.5, -0.0, 1e-300, 1e300, float("inf"), float("nan"), 2**31, 2**53, 2**63,
           -(2**63), 10**400)
RAW = (
    "!!int x", "!!timestamp x", "!!python/object:x {}", "? [a]\n: b", "&a [*a]", "*none",
    "[" * 2000, "- " * 50, "<<: {a: 1}", "\t", "%YAML 9.9\n---", "---\n---", "!!binary é", "=",
    "\0",
)


def mutate(kind, content, rng):
    """@returns None where the content is no such text, or cannot be parsed any more"""
    if kind not in _CHANGES:
        return None
    try:
        text = content.decode()
        return _CHANGES[kind](text, rng).encode(errors="surrogatepass")
    except (ValueError, yaml.YAMLError, RecursionError, TypeError, AttributeError, csv.Error):
        return None


def _yaml(text, rng):
    if rng.random() < 0.1:
        at = rng.randrange(len(text) + 1)
        return text[:at] + rng.choice(RAW) + text[at:]
    return yaml.safe_dump(_changed(yaml.safe_load(text), rng), sort_keys=False, width=1000)


def _lines(text, rng):
    lines = text.splitlines() or [""]
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(_changed(json.loads(lines[at]), rng))
    return "\n".join(lines) + "\n"


def _table(text, rng):
    rows = list(csv.reader(io.StringIO(text)))
    for _ in range(rng.choice((1, 1, 2, 5))):
        row = rng.choice(rows)
        at = rng.randrange(len(row))
        action = rng.randrange(6)
        if action == 0:
            rows.insert(rng.randrange(len(rows) + 1), list(row))
        elif action == 1:
            del rows[rng.randrange(len(rows))]
            rows = rows or [[""]]
        elif action == 2:
            other = rng.choice(rows)
            row[at] = rng.choice(other)
        elif action == 3:
            column = rng.choice((WORDS, NUMBERS))
            for one in rows[1:]:
                if at < len(one):
                    one[at] = str(rng.choice(column))
        else:
            row[at] = str(rng.choice(WORDS + NUMBERS[:-1]))
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _changed(value, rng):
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder = [value]
        _change(holder, rng)
        (value,) = holder
    return value


def _change(root, rng):
    """One of all places below the list `root`."""
    places = list(_places(root))
    holder, key = rng.choice(places)
    action = rng.randrange(7)
    if action == 0 and len(holder) > 1:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[rng.choice((*WORDS[:-1], *holder, 7, None))] = holder[key]
    elif action == 2:
        other, at = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[at], default=str))
    elif action == 3:
        holder[key] = rng.choice(([], {}, [holder[key]], {"a": holder[key]}, None, [[]], True))
    elif action == 4:
        holder[key] = rng.choice(NUMBERS)
    else:
        holder[key] = rng.choice(WORDS)


def _places(holder):
    for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


_CHANGES = {".yaml": _yaml, ".json": _lines, ".jsonl": _lines, ".csv": _table}
