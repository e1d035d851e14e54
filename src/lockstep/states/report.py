"""What the commands about states print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.checkpoint.difference import Differences, TensorDifference, ValueDifference
from lockstep.states.accounts import MOST_SHOWN
from lockstep.states.description import Description, Tensors
from lockstep.states.documents import STREAMS
from lockstep.states.examination import Examined
from lockstep.states.places import ASIDE as PUT_ASIDE
from lockstep.states.summary import COMPLETE, DAMAGED, Summary
from lockstep.states.tables import ASIDE, BAD, GOOD, count, say, size_text
from lockstep.tables import show_table, table
from lockstep.visible import visible

SHORT = 12
"""Digits of a hash that are shown."""
MOST_NAMES = 3
GOES_ON = {
    "order": "with the next sample of the order; nothing before it is read",
    "state_dict": "by the data set's load_state_dict, if it then gives the next step's samples; else by reading the epoch again",
    "reading": "by reading the epoch again from its beginning",
}
WIDEST_VALUE = 40
"""Characters of a value; --json has all of it."""


def show_list(rows: Sequence[Summary], console: Console) -> None:
    """A row for each state, and what is wrong below."""
    runs = len({row.run for row in rows}) > 1
    headings = ("state", "step", "epoch", "saved", "size", "hash", "files")
    drawn = table(*(("run", *headings) if runs else headings), right=("step", "size"))
    for row in rows:
        cells = (
            visible(Path(row.path).name or row.path),
            _number(row.step),
            _epoch(row),
            _when(row.saved),
            size_text(row.size_bytes),
            (row.sha256 or "–")[:SHORT],
            _files_of(row),
        )
        drawn.add_row(*((visible(row.run or "–"), *cells) if runs else cells))
    show_table(drawn, console)
    say(console)
    for row in rows:
        if row.problem:
            say(console, row.problem, BAD)
        if row.not_finite:
            say(console, f"{row.path}: {row.not_finite} is not finite", BAD)
    say(console, "complete: each file is there with its size. `lockstep checkpoint verify` reads every byte.", "dim")


def _files_of(row: Summary) -> Text:
    if row.not_finite:
        return Text(f"{row.files}, not finite", style=BAD)
    return Text(row.files, style={COMPLETE: GOOD, DAMAGED: BAD}.get(row.files, ASIDE))


def _number(number: int | None) -> str:
    return "–" if number is None else str(number)


def _epoch(row: Summary) -> str:
    if row.epochs is None:
        return "–"
    return f"in {row.epochs + 1}" if row.inside_epoch else f"after {row.epochs}"


def _when(saved: str | None) -> str:
    return "–" if saved is None else datetime.fromisoformat(saved).strftime("%Y-%m-%d %H:%M:%S")


def show_description(told: Description, console: Console) -> None:
    """Lines with a word in front, then tables."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    for word, text in _lines(told):
        lines.add_row(Text(word, style="bold"), visible(text))
    for column in lines.columns:
        column.no_wrap = True
    show_table(lines, console)
    for drawn in (_epochs(told), _models(told), _optimizers(told), _files(told)):
        if drawn.row_count:
            say(console)
            show_table(drawn, console)
    say(console)
    say(console, "Sizes and headers fit. `lockstep checkpoint verify` reads every byte.", "dim")


def _lines(told: Description) -> Iterator[tuple[str, str]]:
    counters, inside = told.counters, told.inside
    yield "state", told.path
    yield "saved", _when(told.saved)
    yield "hash", told.sha256
    yield "step", str(counters["step"])
    finished = len(counters["epochs_seen"])
    if inside is None:
        yield "epoch", f"after {count(finished, 'epoch')}"
    else:
        yield "epoch", f"in epoch {counters['epoch']}, after {count(inside.steps, 'step')} of it"
        of = "" if inside.of_samples is None else f" of {inside.of_samples:,}"
        used = "" if inside.samples is None else f"{inside.samples:,}{of} samples used, "
        yield "position", f"{used}loader {inside.loader}, order {inside.order}"
        yield "goes on", GOES_ON[inside.goes_on_by]
    yield "loss", f"{counters['loss']:.9g} in the last step" if counters["num_losses"] else "none yet"
    for number, loader in enumerate(counters["loaders"], 1):
        batch = f", {loader['batch_size']} per batch" if loader.get("batch_size") is not None else ""
        size = "a stream" if loader["samples"] is None else count(loader["samples"], "sample")
        yield f"loader {number}", f"{size}{batch}"
    by = told.written_by
    if told.not_finite:
        yield "not finite", told.not_finite
    yield "written by", ", ".join(f"{name} {by[name]}" for name in by if by[name] is not None) or "not recorded"
    yield "versions", ", ".join(f"{name} {value}" for name, value in told.versions.items()) or "not recorded"
    now, begun = (", ".join(told.streams.get(label, ())) for label in STREAMS)
    yield "streams", f"{now}; of the epoch's beginning: {begun}" if begun else now
    yield from told.schedulers
    if told.named:
        yield "named", ", ".join(f"{name} ({kind})" for name, kind in told.named)
    if told.gradients is not None:
        yield "gradients", _counted(told.gradients) if told.gradients.tensors else "none is set"


def _counted(tensors: Tensors) -> str:
    return f"{count(tensors.tensors, 'tensor')}, {count(tensors.elements, 'element')}, {size_text(tensors.size_bytes)}"


def _epochs(told: Description) -> Table:
    """The last epochs."""
    drawn = table(
        "epoch", "loader", "steps", "samples", "each once", "order", right=("epoch", "loader", "steps", "samples")
    )
    for one in told.epochs[-MOST_SHOWN:]:
        steps = f"{one.steps:,}" if one.of_steps in (None, one.steps) else f"{one.steps:,} of {one.of_steps:,}"
        samples = f"{one.samples:,}" if one.of_samples is None else f"{one.samples:,} of {one.of_samples:,}"
        drawn.add_row(f"{one.epoch:,}", str(one.loader), steps, samples, one.verdict, visible(one.order))
    return drawn


def _models(told: Description) -> Table:
    drawn = table(
        "model", "tensors", "elements", "trained", "size", "dtypes", right=("tensors", "elements", "trained", "size")
    )
    for one in told.models:
        numbers = (f"{one.tensors.tensors:,}", f"{one.tensors.elements:,}", f"{one.trained:,}")
        drawn.add_row(one.name, *numbers, size_text(one.tensors.size_bytes), visible(" ".join(one.tensors.dtypes)))
    return drawn


def _optimizers(told: Description) -> Table:
    drawn = table(
        "optimizer",
        "class",
        "groups",
        "tensors",
        "elements",
        "size",
        "lr",
        right=("groups", "tensors", "elements", "size"),
    )
    for one in told.optimizers:
        rates = dict.fromkeys("–" if group["lr"] is None else f"{group['lr']:g}" for group in one.groups)
        drawn.add_row(
            one.name, visible(one.kind), str(len(one.groups)), f"{one.tensors.tensors:,}", f"{one.tensors.elements:,}",
            size_text(one.tensors.size_bytes), ", ".join(rates),
        )  # fmt: skip
    return drawn


def _files(told: Description) -> Table:
    drawn = table("file", "size", "tensors", "SHA-256", right=("size", "tensors"))
    for one in told.files:
        drawn.add_row(one.name, size_text(one.size_bytes), f"{one.tensors:,}" if one.tensors else "", one.sha256)
    return drawn


def show_examined(all_examined: Sequence[Examined], console: Console) -> None:
    """A row for each state, then each damaged file."""
    drawn = table("state", "files", "size", "verdict", right=("files", "size"))
    for one in all_examined:
        verdict = Text("whole", style=GOOD) if one.is_whole else Text("damaged", style=BAD)
        if one.not_finite:
            verdict = Text(f"{verdict}, not finite", style=BAD)
        drawn.add_row(visible(one.path), str(one.files or "–"), size_text(one.size_bytes or None), verdict)
    show_table(drawn, console)
    for one in all_examined:
        for damage in one.damages:
            say(console)
            say(console, damage.problem, BAD)
            if damage.tensors:
                say(console, f"  lost: {_first(damage.tensors)}")
        if one.others:
            say(console)
            say(
                console,
                f"{one.path} holds other files too ({_first(one.others)}), so lockstep will not replace or remove it.",
            )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def show_differences(found: Differences, console: Console) -> None:
    """Tensors, values, and who wrote the two; last, one sentence."""
    if found.tensors:
        drawn = table("in", "tensor", "dtype, shape", "differing", "largest difference", right=("differing",))
        for one in found.tensors:
            drawn.add_row(one.file, visible(one.name), *_tensor_cells(one))
        show_table(drawn, console)
        say(console)
    for title, values in (("value", found.values), ("written by", found.written)):
        if values:
            show_table(_value_table(title, values, found), console)
            say(console)
    if found.same:
        say(console, f"same bits: {count(found.num_tensors, 'tensor')}, {count(found.num_values, 'value')}", GOOD)
        return
    tensors = f"{len(found.tensors):,} of {count(found.num_tensors, 'tensor')}"
    say(console, f"different: {tensors}, {len(found.values):,} of {count(found.num_values, 'value')}", BAD)


def _tensor_cells(one: TensorDifference) -> tuple[str, str, str]:
    if one.largest is not None:
        largest = f"{one.largest:.3g}" if one.largest else "0 (other bits)"
        return one.left, f"{one.num_differing:,} of {one.num_elements:,}", largest
    if not one.right or not one.left:
        return one.left or one.right, "", f"only in {'the first' if one.left else 'the second'}"
    return f"{one.left} → {one.right}", "", "another dtype or shape"


def _value_table(title: str, values: Sequence[ValueDifference], found: Differences) -> Table:
    drawn = table(title, _short(found.left, found.right), _short(found.right, found.left))
    for one in values:
        drawn.add_row(visible(one.path), _cut(one.left or "–"), _cut(one.right or "–"))
    return drawn


def _cut(text: str) -> str:
    return visible(text if len(text) <= WIDEST_VALUE else f"{text[: WIDEST_VALUE - 1]}…")


def _short(path: str, other: str) -> str:
    """The name of a state in a heading; its whole path where both have the same name."""
    name = Path(path).name
    return visible(name if name and name != Path(other).name else path)


def show_put_aside(paths: Sequence[str], console: Console) -> None:
    """Say which states were not looked at."""
    if paths:
        say(console)
        say(console, f"Not read, because a resumed run has put them aside ({PUT_ASIDE}…): {_first(paths)}.", "dim")
