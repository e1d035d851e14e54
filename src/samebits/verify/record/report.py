"""What `samebits record` prints: the values that `--json` shows, as lines, tables and sentences of 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.launcher.states.report import size_text
from samebits.launcher.watch.table import show_table, table
from samebits.machine.visible import visible
from samebits.verify.record.conditions import Json, few_words, packages_of, value_text
from samebits.verify.report import BAD, GOOD, print_lines

NAMES = {
    "from": "since step",
    "epoch": "epoch",
    "ids": "samples",
    "data": "contents",
    "loss": "loss",
    "lr": "learning rate",
    "scale": "loss scale",
    "lanes": "by lane",
}
"""Of what stands in a step's line."""
SENTENCES = {
    "from": "steps without a backward before it",
    "ids": "other samples",
    "data": "the same samples with other contents",
    "lanes": "the same samples with other contents",
}
MOST_ROWS = 8
"""Files, stretches of steps, conditions that are shown; --json has all."""
MOST_STATES = 12
WIDEST_VALUE = 24
WIDEST = 64
DIGITS = 12


def show_record(found: Json, console: Console) -> None:
    """One screen."""
    _show_lines(_lines(found), console)
    if found["differs"] is not None:
        say(console)
        _show_difference(found["differs"], console)
    if found["broken"]:
        say(console)
        say(console, f"{found['broken'][0].upper()}{found['broken'][1:]}.", BAD)


def _lines(found: Json) -> Iterator[tuple[str, str | Text]]:
    yield "run", shlex.join([found["script"] or "unknown", *found["arguments"]])
    yield "record", f"{found['record']}, {size_text(found['size_bytes'])}"
    if found["starts"]:
        yield "", f"the record says: {starts_text(found['starts'])} (not checked)"
        yield from _of_branch(found["starts"][-1])
    if found["conditions"]:
        yield from _of_conditions(found["conditions"])
    yield "steps", _steps_text(found)
    if found["loss"]:
        yield "loss", ", ".join(f"{_short(loss)} at step {step}" for step, loss in found["loss"].items())
    yield "states", _states_text(found["states"])
    for why in found["damaged_states"].values():
        yield "", Text(visible(why), BAD)
    end = found["end"]
    yield "end", f"after step {end['step']}" if end else "not yet, or not well"
    if end:
        yield "bits", end["bits"].removeprefix("sha256:")
    chain = "breaks" if found["broken"] else "holds"
    yield "chain", Text(f"{chain}, last link {found['link'] or 'none'}", BAD if found["broken"] else GOOD)


def _of_branch(start: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """From where it went on, and what it passed over."""
    if isinstance(parent := start.get("parent"), dict):
        yield "branch of", f"{_plain(parent.get('run'))}, after step {_plain(parent.get('step'))}"
    if skipped := start.get("skipped"):
        yield "skipped", _cut(_plain(skipped))


def starts_text(starts: Sequence[Mapping[str, Any]]) -> str:
    """`4 ranks, ddp, 3 starts`; what differs between starts in their order."""
    ranks = " then ".join(dict.fromkeys(_count(one.get("ranks", 0), "rank") for one in starts))
    strategies = " then ".join(dict.fromkeys(str(one.get("strategy", "?")) for one in starts))
    return ", ".join((ranks, strategies, _count(len(starts), "start")))


def _of_conditions(conditions: Sequence[Json]) -> Iterator[tuple[str, str]]:
    first = conditions[0]["conditions"]
    yield (
        "made with",
        _words(first, ("torch", "python", "cpu", "device", "glibc"), ("torch", "python")),
    )
    if model := first.get("cpu_model"):
        yield "", _plain(model)
    yield (
        "",
        _words(first, ("numerics", "precision"), ("precision",))
        + "".join(
            f", {_count(first[key], key.removesuffix('s'))}"
            for key in ("lanes", "threads")
            if type(first.get(key)) is int
        )
        + f", seed {first.get('seed')}",
    )
    packages = first.get("packages")
    if isinstance(packages, list):
        yield "", _count(len(packages_of(packages)), "package")
    if isinstance(first.get("environment"), dict) and first["environment"]:
        yield "", _listed([f"{name}={value}" for name, value in first["environment"].items()])
    if commit := first.get("commit"):
        yield "commit", f"{value_text(commit)}{', with changes' if first.get('changes') else ''}"
    files = conditions[-1]["conditions"].get("files", {})
    if files:
        yield "files", _listed([f"{name} {value_text(digest)}" for name, digest in files.items()])
    for one in conditions[1:MOST_ROWS]:
        changed = [row for row in one["changed"] if not _is_new_file(row)]
        new = [row["condition"].removeprefix("file ") for row in one["changed"] if _is_new_file(row)]
        words = [f"imports {_listed(new)}"] * bool(new) + [few_words(changed)] * bool(changed)
        yield f"after step {one['after']}", "; ".join(words) or "the same again"
    if len(conditions) > MOST_ROWS:
        yield "", f"and {len(conditions) - MOST_ROWS} more changes"


def _is_new_file(row: Json) -> bool:
    return str(row["condition"]).startswith("file ") and row["left"] is None


def _words(values: Mapping[str, Any], keys: Sequence[str], named: Sequence[str]) -> str:
    """`torch 2.9.0, python 3.11.7, AVX512, cpu`."""
    there = [key for key in keys if key in values]
    return ", ".join(f"{key} {_plain(values[key])}" if key in named else _plain(values[key]) for key in there)


def _steps_text(found: Json) -> str:
    if not found["steps"]:
        return "none yet"
    is_whole = found["steps"] == found["last"] - found["first"] + 1
    count = "" if is_whole else f" ({_count(found['steps'], 'step')} with a backward)"
    epochs = f", {_count(found['epochs'], 'epoch')}" if type(found["epochs"]) is int else ""
    gaps = f"; not there: {_stretches(found['gaps'])}" if found["gaps"] else ""
    cut = "; the last line is cut" if found["is_cut"] else ""
    return f"{found['first']} to {found['last']}{count}{epochs}{gaps}{cut}"


def _stretches(stretches: Sequence[Sequence[int]]) -> str:
    return _listed([str(first) if first == last else f"{first} to {last}" for first, last in stretches])


def _states_text(states: Sequence[Json]) -> str:
    there = [one for one in states if one["is_there"]]
    missing = len(states) - len(there)
    text = "none"
    if there:
        size = size_text(sum(one["size_bytes"] for one in there))
        text = f"after step {_listed([str(one['step']) for one in there], MOST_STATES)} ({size})"
    return f"{text}; of {_count(missing, 'state')} only the SHA-256 of its files" if missing else text


def _show_difference(found: Json, console: Console) -> None:
    where = _in_lanes(found["lanes"])
    say(
        console,
        f"Step {found['step']} came again otherwise ({NAMES.get(found['key'], 'step')}{where}); the record ends there.",
        BAD,
    )
    was, now = found["was"], found["is"]
    drawn = table("", "first", "again")
    for key in dict.fromkeys((*was, *now)):
        style = BAD if was.get(key) != now.get(key) else ""
        drawn.add_row(NAMES.get(key, key), *(Text(_cut(_value(one.get(key))), style) for one in (was, now)))
    show_table(drawn, console)


def show_step(line: Json, console: Console) -> None:
    """The line of one step."""
    lines: list[tuple[str, str]] = [("step", f"{line['step']}, in epoch {line.get('epoch')}")]
    lines += [(word, _value(line[key])) for key, word in NAMES.items() if key in line and key not in ("epoch", "lanes")]
    if line.get("lanes"):
        lines.append(("by lane", line["lanes"].replace("-", " ")))
    after = line["conditions_after"]
    lines.append(("conditions", "none" if after is None else f"those after step {after}"))
    lines.append(("link", line["chain"]))
    _show_lines(lines, console)


def show_comparison(found: Json, console: Console) -> None:
    """What differs, then one sentence."""
    if found["first"] is not None:
        _show_rows(
            f"step {found['first']['step']}",
            [{"condition": NAMES[row["what"]], **row} for row in found["first"]["differs"] if row["what"] != "lanes"],
            console,
        )
    _show_rows("condition", found["conditions"], console)
    for name, why in found["broken"].items():
        if why:
            say(console, f"{name}: {why}", BAD)
    for sentence in _only(found):
        say(console, sentence)
    say(console, *_verdict(found))


def _show_rows(title: str, rows: Sequence[Json], console: Console) -> None:
    if not rows:
        return
    drawn = table(title, "left", "right")
    for row in rows[:MOST_ROWS]:
        values = (_cut(_value(_shown(row[side]))) for side in ("left", "right"))
        drawn.add_row(_cut(visible(row["condition"])), *values)
    show_table(drawn, console)
    if len(rows) > MOST_ROWS:
        say(console, f"and {len(rows) - MOST_ROWS} more: --json", "dim")
    say(console)


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else value_text(value)


def _only(found: Json) -> Iterator[str]:
    for name, other in (("left", "right"), ("right", "left")):
        if stretches := found["only"][name]:
            yield f"only {name} has steps {_stretches(stretches)}"
        if found["ends"][name] and not found["ends"][other]:
            yield f"only {name} has an end"
    left, right = found["ends"]["left"], found["ends"]["right"]
    if left and right and left != right:
        after = "" if left["step"] == right["step"] else "after step {step} "
        one, other = (f"{after.format(**end)}{_bits(end)}" for end in (left, right))
        yield f"the bits at the end differ: {one} left, {other} right"


def _bits(end: Json) -> str:
    return str(end["bits"]).removeprefix("sha256:")[:DIGITS]


def _verdict(found: Json) -> tuple[str, str]:
    rows, first = found["conditions"], found["first"]
    if first is not None:
        what = apart_text(first)
        return f"different: {_count(found['same_steps'], 'step')} the same, then step {first['step']}: {what}", BAD
    if not found["steps"]:
        return "different: no step is in both", BAD
    count = _count(found["steps"], "step")
    text = f"the same {count}{f', under other conditions: {few_words(rows)}' if rows else ''}"
    if found["same"]:
        return text, GOOD
    why = (
        "a chain breaks"
        if any(found["broken"].values())
        else "one has more"
        if _has_more(found)
        else "the bits at the end differ"
    )
    return f"different: {text}; but {why}", BAD


def _has_more(found: Json) -> bool:
    return any(found["only"].values()) or None in found["ends"].values()


def apart_text(first: Json) -> str:
    """What differs first in a step, in words: `other samples in lanes 1, 3`."""
    row = first["differs"][0]
    key = row["what"]
    if key in SENTENCES:
        return f"{SENTENCES[key]}{_in_lanes(first['lanes'])}"
    return f"{NAMES[key]} {_value(row['left'])} and {_value(row['right'])}"


def _in_lanes(lanes: Sequence[int]) -> str:
    return f" in lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}" if lanes else ""


def show_published(found: Json, console: Console) -> None:
    """What becomes public."""
    say(console, f"{found['folder']}: {_count(found['files'], 'file')}, {size_text(found['size_bytes'])}", GOOD)
    _show_lines(list(found["public"].items()), console)
    for sentence in found["left_out"]:
        say(console, f"left out: {sentence}")
    say(console, f"Check it with `{found['check']}`.", "dim")


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print a sentence, broken at words, or an empty line."""
    print_lines([(text, style)], console)


def _show_lines(lines: Iterable[tuple[str, str | Text]], console: Console) -> None:
    """A word and a text in each, broken at the terminal's width, without spaces at the ends."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, show_header=False)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for word, text in lines:
        drawn.add_row(Text(visible(word), "bold"), text if isinstance(text, Text) else Text(visible(text)))
    for segments in console.render_lines(drawn, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)


def _value(value: Any) -> str:
    """A loss, a rate, a digest."""
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    return _plain(value)


def _short(loss: Any) -> str:
    """Each number with so many digits as people look at."""
    values = loss if isinstance(loss, list) else [loss]
    return ", ".join(f"{one:.6g}" if isinstance(one, float) else _plain(one) for one in values) or "none"


def _plain(value: Any) -> str:
    return "–" if value is None else _cut(visible(value), WIDEST)


def _cut(text: str, most: int = WIDEST_VALUE) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _count(number: Any, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}" if isinstance(number, int) else f"{_plain(number)} {word}s"


def _listed(words: Sequence[str], most: int = MOST_ROWS) -> str:
    more = len(words) - most
    return ", ".join([*words[:most], *([f"and {more} more"] if more > 0 else [])])
