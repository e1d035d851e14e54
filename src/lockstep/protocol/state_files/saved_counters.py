"""Whether the counters of a saved state can be true. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST = 1 << 62


def wrong_counters(saved: Any) -> str:
    """What is wrong with them, in words; empty when nothing is.

    Args:
        saved: what `lockstep.rank.checkpoint.saving.state.counters` made once.
    """
    return next(_problems(saved), "") if isinstance(saved, Mapping) else "its counters are not a dictionary"


def _problems(saved: Mapping[str, Any]) -> Iterator[str]:
    for name in ("step", "epoch", "num_losses"):
        if not _is_count(saved.get(name)):
            yield f"its counter {name} is {saved.get(name)!r}"
    if type(saved.get("loss")) not in (int, float):
        yield f"its loss is {saved.get('loss')!r}"
    seen, position = saved.get("epochs_seen"), saved.get("epochs")
    if not isinstance(seen, list) or not all(map(_is_count, seen)):
        yield "its samples per epoch are not numbers"
    if not isinstance(position, Mapping) or not all(_is_count(position.get(name)) for name in ("loop", "next")):
        yield f"its position in the script's epochs is {position!r}"
    if saved.get("tallies") is not None and not _are_tallies(saved["tallies"]):
        yield "its tallies are not described the way lockstep does it"
    if not _is_inside(saved.get("inside")):
        yield f"its place inside an epoch is {saved.get('inside')!r}"
    accounts = saved.get("accounts", [])
    now = saved.get("account")
    if not isinstance(accounts, list) or not all(map(_is_account, [*accounts, *([] if now is None else [now])])):
        yield "its accounts of samples are not described the way lockstep does it"
    yield from _unlike_lists(saved)


def _unlike_lists(saved: Mapping[str, Any]) -> Iterator[str]:
    for what, told, is_one in (
        ("lines of run.log", saved.get("lines", []), _is_line),
        ("loaders", saved.get("loaders"), _is_loader),
    ):
        if not isinstance(told, list) or not all(map(is_one, told)):
            yield f"its {what} are not described the way lockstep does it"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_inside(told: Any) -> bool:
    if told is None:  # between epochs
        return True
    return (
        isinstance(told, Mapping)
        and isinstance(told.get("order"), str)
        and (
            set(told) == {"loader", "order", "done", "loop"}
            and all(_is_count(told[name]) for name in ("loader", "done", "loop"))
        )
    )


def _is_line(told: Any) -> bool:
    if not isinstance(told, Mapping) or not {"step", "epoch", "time"} <= set(told):
        return False
    return all(value is None or type(value) in (int, float) for value in told.values())


def _is_loader(told: Any) -> bool:
    if not isinstance(told, Mapping):
        return False
    sizes = told.get("batch_size", ""), told.get("samples", "")  # an IterableDataset has no number of samples
    return _is_count(told.get("epochs_begun")) and all(size is None or _is_count(size) for size in sizes)


def _is_account(told: Any) -> bool:
    counts = ("loader", "steps", "samples", "different")
    return (
        isinstance(told, Mapping)
        and set(told) == {*counts, "of_steps", "of_samples", "order"}
        and all(_is_count(told[name]) for name in counts)
        and all(told[name] is None or _is_count(told[name]) for name in ("of_steps", "of_samples"))
        and isinstance(told["order"], str)
    )


def _are_tallies(told: Any) -> bool:
    return (
        isinstance(told, Mapping)
        and set(told) == {"outside", "body"}
        and all(isinstance(made, list) and all(map(_is_sums, made)) for made in told.values())
    )


def _is_sums(told: Any) -> bool:
    return isinstance(told, Mapping) and all(
        isinstance(lanes, Mapping)
        and all(lane.isdecimal() and isinstance(pair, list) and _are_two_numbers(pair) for lane, pair in lanes.items())
        for lanes in told.values()
    )


def _are_two_numbers(pair: list[Any]) -> bool:
    return [type(one) for one in pair] == [float, float]
