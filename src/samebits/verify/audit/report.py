"""How an audit looks: the verdict first, then what was compared, and what that proves."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from samebits.machine.visible import visible
from samebits.verify.audit.audit import Audited, Outcome
from samebits.verify.audit.checked import Checked
from samebits.verify.audit.plan import share_missed
from samebits.verify.report import BAD, EXPECTED, GOOD, print_folder, print_lines
from samebits.verify.result import CANNOT_TELL

MOST_SAMPLES = 12
"""Indices that are named of a lane."""
PROVES = (
    "It proves that these sources and data give these bits here. Not who ran it, when, or on how many ranks; nor that data and "
    "script are honest."
)
CHAIN_ONLY = (
    "Nothing was made again: a chain that holds shows that no line was changed by itself, not that the run was made."
)
WORDS = {0: ("MATCH", GOOD), 1: ("NO MATCH", BAD), CANNOT_TELL: ("CANNOT TELL", EXPECTED)}
HOLDS = "CHAIN HOLDS"


def show(found: Audited, what: Checked, console: Console, *, seconds: float) -> None:
    """Print all there is."""
    word, style = WORDS[found.exit_code]
    if not found.replays and not found.exit_code:
        word = HOLDS
    line = Text(word, style)
    console.print(line.append(visible(f"  {_what(found, what)}"), "default").append(f"   {seconds:.0f} s", "dim"))
    print_lines(_sentences(found, what), console)
    for one in found.outcomes:
        if one.block:
            console.print(Text(one.block.rstrip()), soft_wrap=True)
    print_lines([(PROVES if found.replays else CHAIN_ONLY, "dim")], console)
    print_folder(found.kept, console)


def _what(found: Audited, what: Checked) -> str:
    if not found.replays:
        count = sum(one.path is not None for one in what.states.values())
        return f"{found.title}: {len(what.record.lines):,} steps" + (
            f", {count} state{'s' * (count != 1)}" if count else ""
        )
    on_ranks = f"on {found.ranks} rank{'s' * (found.ranks != 1)}"
    if found.exit_code:
        return f"{found.title}, {on_ranks}"
    count = sum(len(one.states) for one in found.outcomes)
    parts = [f"{sum(one.steps for one in found.outcomes):,} of {len(what.record.lines):,} steps"]
    parts += [f"{count} state{'s' * (count != 1)}"] if count else []
    parts += ["the bits at the end"] if any(one.end for one in found.outcomes) else []
    said = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"{found.title}: {said} came again {on_ranks}"


def _sentences(found: Audited, what: Checked) -> Iterator[tuple[str, str]]:
    for text in filter(None, (found.forged, *found.damaged.values())):
        yield text, BAD
    for one in found.outcomes:
        yield from _of_outcome(one)
    # With the same bits too: the record claims others than those that gave them here.
    for title, key in (("other conditions here", "machine"), ("not the recorded program", "code")):
        if texts := list(dict.fromkeys(text for one in found.outcomes for text in getattr(one, key))):
            yield f"{title}: {visible('; '.join(texts))}", EXPECTED if found.exit_code else "dim"
    for first, last in found.gaps:
        steps = f"step {first} is" if first == last else f"steps {first} to {last} are"
        yield f"{steps} not in the record", EXPECTED
    yield from _limits(found, what)


def _of_outcome(one: Outcome) -> Iterator[tuple[str, str]]:
    if one.difference:
        yield one.difference, EXPECTED if one.exit_code == CANNOT_TELL else BAD
    if one.of_another_program:
        yield (
            "that step was made with another program than later ones: check it with that one, and --steps A:B",
            EXPECTED,
        )
    for lane, ids in one.samples.items():
        more = f" and {len(ids) - MOST_SAMPLES} more" if len(ids) > MOST_SAMPLES else ""
        yield f"lane {lane} has samples {visible(', '.join(map(str, ids[:MOST_SAMPLES])))}{more} here", ""
    if one.why:
        yield one.why, EXPECTED


def _limits(found: Audited, what: Checked) -> Iterator[tuple[str, str]]:
    """What was not checked."""
    if what.record.end is None and found.replays:
        yield f"the record ends behind step {what.record.last}, without the run's end", ""
    if found.replays and found.begins_after:
        yield (
            f"the record begins with the state after step {found.begins_after}: how that came about was not checked",
            EXPECTED,
        )
    if found.replays and found.as_the_record_says:
        yield f"as the record says, and in no argument: {visible(found.as_the_record_says)}", EXPECTED
    number, of = len(found.segments), found.num_segments
    if found.replays and 0 < number < of:
        yield f"{number} of {of} segments: {share_missed(number, of):.0%} of such audits miss one forged segment", ""
    if found.says:
        yield f"the record says: {visible(found.says)} (not checked)", "dim"
