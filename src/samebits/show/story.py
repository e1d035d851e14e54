"""What a page shows of a run, as JSON values: from its events, metrics, summary and plan, and from nothing else."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samebits.launcher.diagnosis.findings import FINDINGS
from samebits.launcher.watch.diagnosis import block_in, not_in
from samebits.launcher.watch.table import duration_text
from samebits.machine.visible import visible, visible_lines
from samebits.protocol.case import cases_in
from samebits.protocol.events import SCHEMA, Event, Kind, finite, of_kind
from samebits.show.curves import Curves
from samebits.show.run_data import PARTS, RunData, dicts_in, positive_or_zero, seconds_in

MOST_EVENTS = 500
MOST_RANKS = 1024
MOST_FINDINGS = 20
MOST_LETTERS = 20_000
"""Of a failure block."""
PACKAGE = Path(__file__).parents[1]


def story_of(data: RunData) -> dict[str, Any]:
    """What the page of one run shows."""
    status = _status(data)
    return {
        "schema": SCHEMA,
        "name": data.name,
        "title": f"{Path(data.script).name or 'a run'} on {_count(_ranks(data), 'rank')}: {status}",
        "status": status,
        "is_bad": status not in {"running", "finished", "stopped"},
        "sub": _sub(data),
        "failure": visible_lines(block_in(data.folder))[:MOST_LETTERS],
        "findings": _findings(data),
        "cards": _cards(data),
        "curves": curves_told(data.curves),
        "is_whole": data.curves.is_whole,
        "branch": _branch_text(data),
        "marks": [*_branch_mark(data), *_marks(data.events)],
        "pace": _pace(data),
        "memory": _memory(data),
        "time": _time(data),
        "events": _events(data),
        "bits": _bits(data),
    }


def _status(data: RunData) -> str:
    end = data.ended
    if end is None:
        return "left without an end: its launcher is gone" if data.is_left else "running"
    if end.fields.get("signal"):
        return "stopped"
    return "finished" if end.fields.get("exit_code") == 0 else f"failed with exit code {end.fields.get('exit_code')}"


def _ranks(data: RunData) -> int:
    starts = of_kind(data.events, Kind.START)
    ranks = starts[-1].fields.get("ranks") if starts else data.plan.get("ranks")
    return ranks if isinstance(ranks, int) and 0 < ranks < 1 << 20 else 0


def _sub(data: RunData) -> str:
    versions = data.summary.get("versions")
    torch = versions.get("torch") if isinstance(versions, dict) else None
    began = time.strftime("%-d %B %Y, %H:%M", time.localtime(min(max(data.began_s, 0), 1e10)))
    seconds = finite(data.ended.fields.get("seconds")) if data.ended is not None else math.nan
    parts = [
        data.name,
        began,
        f"{time_text(seconds)}" if math.isfinite(seconds) else "",
        f"torch {torch}" if torch else "",
    ]
    parts += [str(data.plan.get("device") or ""), _branch_text(data)]
    parts.append(f"without the samples of {data.course.skipped.text}" if data.course.skipped else "")
    return " · ".join(visible(part) for part in parts if part)


def _cards(data: RunData) -> list[dict[str, str]]:
    kills, restarts = (len(of_kind(data.events, kind)) for kind in (Kind.KILL, Kind.RESTART))
    again = sum(positive_or_zero(one.fields.get("steps_again")) for one in of_kind(data.events, Kind.RESTART))
    cards = [*_last_values(data)]
    if kills or restarts:
        label = f"{_count(restarts, 'restart')}, {_count(int(again), 'step')} again"
        cards.append({"value": _count(kills, "kill"), "label": label if restarts else "nothing started again"})
    rate = data.samples_per_s
    paces = of_kind(data.events, Kind.PACE)
    if not math.isfinite(rate) and paces:
        rate = paces[-1].number("samples_per_s")
    if math.isfinite(rate):
        cards.append({"value": f"{rate:,.0f} samples/s", "label": "while training"})
    if (largest := _largest_part(data)) is not None:
        part, share = largest
        cards.append({"value": f"{part} {share:.0%}", "label": "of a step’s time, the largest part"})
    samples, step = str(data.summary.get("samples") or ""), max((one.step for one in data.events), default=0)
    what = re.sub(r"\d{4,15}", lambda found: f"{int(found[0]):,}", samples.partition(",")[0]).replace(" x ", " × ")
    if "each once" in samples:
        cards.append({"value": "each once", "label": what, "ok": "1"})
    elif data.events:
        cards.append({"value": f"{step:,}", "label": "steps done" if _status(data) == "finished" else "step reached"})
    return [{key: visible(value) for key, value in card.items()} for card in cards]


def _largest_part(data: RunData) -> tuple[str, float] | None:
    """What most of a step's time goes into, over all ranks, and its share."""
    shares = [row["shares"] for row in _time(data)]
    whole = {part: sum(one[part] for one in shares) / len(shares) for part in PARTS} if shares else {}
    return max(whole.items(), key=lambda item: item[1], default=None)


def _findings(data: RunData) -> list[dict[str, str]]:
    """What has a name, its sentence, and what to do first; without those that the failure block has said."""
    cases = not_in(block_in(data.folder), cases_in(data.folder.findings))
    return [
        {
            "name": case.finding,
            "title": FINDINGS[case.finding].title,
            "said": visible(case.said),
            "fix": FINDINGS[case.finding].aid_afterwards if data.ended else FINDINGS[case.finding].first_aid,
        }
        for case in cases
        if case.finding in FINDINGS
    ][-MOST_FINDINGS:]


def _last_values(data: RunData) -> list[dict[str, str]]:
    loss, found = data.curves.loss, []
    if loss is not None:
        found.append(("last loss", loss.values[-1]))
    else:
        losses = [one.number("loss") for one in of_kind(data.events, Kind.PACE) if one.fields.get("loss") is not None]
        found += [("last loss", losses[-1])] if losses else []
    others = [(name, curve.values[-1]) for name, curve in data.curves.by_name.items() if curve is not loss]
    found += [(f"last {name}", value) for name, value in others[:1]]
    return [{"value": f"{value:.4g}", "label": label} for label, value in found]


def curves_told(curves: Curves) -> list[dict[str, Any]]:
    """The curves for a picture, that of the loss first."""
    loss = curves.loss
    ordered = sorted(curves.by_name.items(), key=lambda item: item[1] is not loss)
    told = []
    for name, curve in ordered:
        steps, values = curve.thinned()
        told.append({"name": visible(name), "steps": steps, "values": values, "unfinite": curve.num_unfinite})
    return told


def _marks(events: Sequence[Event]) -> list[dict[str, Any]]:
    kinds = (Kind.KILL, Kind.FAILURE, Kind.DAMAGE, Kind.STALL, Kind.NODES)
    marks = [{"step": event.step, "kind": event.kind, "text": _mark_text(event)} for event in of_kind(events, *kinds)]
    return marks[:MOST_EVENTS]


def _branch_text(data: RunData) -> str:
    """`branched from exp1 after step 1200`; empty for a run that began by itself."""
    parent = data.course.parent
    return f"branched from {visible(parent.run)} after step {parent.step}" if parent is not None else ""


def _branch_mark(data: RunData) -> list[dict[str, Any]]:
    parent = data.course.parent
    return [{"step": parent.step, "kind": "branch", "text": _branch_text(data)}] if parent is not None else []


def _mark_text(event: Event) -> str:
    rank = event.fields.get("rank")
    return f"rank {rank}" if isinstance(rank, int) else str(event.kind)


def _pace(data: RunData) -> dict[str, list[Any]]:
    paces = of_kind(data.events, Kind.PACE)
    return {
        "at_s": [round(one.time_s - data.began_s, 1) for one in paces],
        "steps": [one.step for one in paces],
        "samples_per_s": [_or_none(one.number("samples_per_s")) for one in paces],
        "loss": [_or_none(one.number("loss")) for one in paces],
    }


def _memory(data: RunData) -> dict[str, Any]:
    paces = of_kind(data.events, Kind.PACE)
    held = [
        [_or_none(finite(one)) for one in event.fields.get("memory", ())[:MOST_RANKS]]
        if isinstance(event.fields.get("memory"), list)
        else []
        for event in paces
    ]
    most = max((len(one) for one in held), default=0)
    rows = [[one[rank] if rank < len(one) else None for one in held] for rank in range(most)]
    return {"at_s": [round(one.time_s - data.began_s, 1) for one in paces], "ranks": rows}


def _time(data: RunData) -> list[dict[str, Any]]:
    """Where the time of a step went, rank by rank: shares, and milliseconds."""
    rows = []
    for rank, one in list(dicts_in(data.summary.get("time")).items())[:MOST_RANKS]:
        seconds = seconds_in(one)
        whole = sum(seconds.values())
        if whole > 0 and math.isfinite(whole):
            shares = {part: round(took / whole, 4) for part, took in seconds.items()}
            rows.append({"rank": visible(rank), "shares": shares, "step_ms": _or_none(finite(one.get("step_ms")))})
    if not rows:
        paces = [one.fields.get("shares") for one in of_kind(data.events, Kind.PACE)]
        if paces and isinstance(paces[-1], dict):
            shares = {part: _or_none(finite(paces[-1].get(part))) or 0.0 for part in PARTS}
            rows = [{"rank": "all", "shares": shares, "step_ms": None}]
    return rows


def _events(data: RunData) -> list[dict[str, Any]]:
    told = [one for one in data.events if one.kind not in {Kind.PACE, Kind.EVALUATION}]
    if len(told) > MOST_EVENTS:
        told = [*told[: MOST_EVENTS // 2], *told[-MOST_EVENTS // 2 :]]
    return [
        {
            "at_s": round(one.time_s - data.began_s, 1),
            "kind": str(one.kind),
            "step": one.step,
            "said": visible(event_text(one)),
            "is_bad": one.kind is Kind.END and one.fields.get("exit_code") != 0,
        }
        for one in told
    ]


def event_text(event: Event) -> str:  # noqa: PLR0911 - one for each kind
    get = event.fields.get
    match event.kind:
        case Kind.START:
            attempt = get("attempt")
            return f"{_count(get('ranks'), 'rank')} on {get('device')}" + (
                f", start {attempt + 1}" if isinstance(attempt, int) and attempt else ""
            )
        case Kind.RESUME:
            return f"from step {event.step}"
        case Kind.CHECKPOINT:
            return f"after step {event.step}: {Path(str(get('path'))).name}"
        case Kind.KILL:
            return f"rank {get('rank')} was killed by {get('signal')}" + (f" ({get('place')})" if get("place") else "")
        case Kind.RESTART:
            origin = f"from step {get('from')}" if get("from") is not None else "from the beginning"
            return f"{event.said}; {origin}, {_count(get('steps_again'), 'step')} again"
        case Kind.END:
            return f"exit code {get('exit_code')} after {time_text(event.number('seconds'))}"
    return event.said


def _texts(names: object, words: str) -> list[str]:
    return [f"{words} {visible(str(one))}" for one in names] if isinstance(names, list) else []


def _bits(data: RunData) -> dict[str, Any]:
    bits = str(data.summary.get("bits") or "")
    without = data.summary.get("resumed_without")
    arithmetic = data.decided.get("arithmetic")
    lanes, threads = data.decided.get("lanes"), data.decided.get("threads")
    facts = [_count(lanes, "lane") if lanes else "", f"{_count(threads, 'thread')} per rank" if threads else ""]
    if isinstance(arithmetic, dict):
        facts += [
            f"seed {arithmetic.get('seed')}",
            str(arithmetic.get("numerics") or ""),
            f"precision {arithmetic.get('precision')}",
        ]
    found = [
        *_texts(data.summary.get("lanes_hand_on"), "lanes hand on"),
        *_texts(data.summary.get("samples_depend_on"), "samples depend on"),
        *_texts(data.summary.get("not_looked_at"), "not looked at:"),
    ]
    return {
        "bits": visible(bits),
        "found": found,
        "facts": visible(" · ".join(fact for fact in facts if fact)),
        "without": [visible(str(one)) for one in without] if isinstance(without, list) else [],
        "commands": [
            f"samebits run -n 1 {_course_words(data)}{_program_words(data)}",
            f"samebits verify --ranks 1,2,4 {_program_words(data)}",
        ],
    }


def _program_words(data: RunData) -> str:
    """Options that its bits depend on, the script and its arguments: in this order, else the script would get the options."""
    plan, decided, path = data.plan, data.decided, Path(data.script)
    lanes = plan.get("lanes") if decided.get("lanes_named", True) else decided.get("lanes")
    given = {"lanes": lanes, "threads": decided.get("threads")}
    given |= {name: plan.get(name) for name in ("precision", "numerics")}
    words = [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
    if path.is_relative_to(PACKAGE):
        # The demo's script, wherever the package is installed.
        words += ["-m", ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)]
    else:
        words += ["-m"] * bool(plan.get("module")) + [data.script or "train.py"]
    args = plan.get("args")
    words += [one for one in args if isinstance(one, str)] if isinstance(args, list) else []
    return visible(shlex.join(words))


def _course_words(data: RunData) -> str:
    """The options with which a branch begins, and steps are passed over."""
    course, parent = data.course, data.course.parent
    words = ["--from", f"{parent.run}@{parent.step}", "--name", "again"] if parent is not None else []
    words += ["--fresh", ",".join(course.fresh)] if course.fresh else []
    words += ["--skip-steps", str(course.skipped)] if course.skipped else []
    return f"{visible(shlex.join(words))} " if words else ""


def _count(number: object, noun: str) -> str:
    if not isinstance(number, int):
        return f"? {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def time_text(seconds: float) -> str:
    """`4.2 s`, `12 min`, `3.1 h`; a question mark for what is no number."""
    return duration_text(seconds) if math.isfinite(seconds) else "?"
