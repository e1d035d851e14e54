"""The table of what grew, and how; and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.growth.fitting import fit
from benchmarks.growth.quantities import QUANTITIES, Quantity, Unit

Measured = Mapping[int, Mapping[str, float]]
"""By number of ranks, then by name."""
SLACK = 0.35
"""So much above its power a fit over few, noisy numbers may be without being marked."""

LEGEND = (
    "power: the quantity grew like a constant and this power of the ranks; empty where fewer than four numbers of ranks tell too\n"
    f"little. may be: the most that its algorithm needs. !: more than {SLACK} above that."
)


def values_of(quantity: Quantity, measured: Measured) -> dict[int, float]:
    """What was measured of it, by number of ranks."""
    return {ranks: found[quantity.name] for ranks, found in measured.items() if quantity.name in found}


def power_of(quantity: Quantity, measured: Measured) -> float | None:
    """The power with which it grew; None where that cannot be told."""
    growth = fit(values_of(quantity, measured))
    return growth.power if growth is not None else None


def grows_too_fast(quantity: Quantity, measured: Measured) -> bool:
    """Whether it grew clearly faster than it may."""
    power = power_of(quantity, measured)
    return power is not None and power > quantity.may + SLACK


def table_of_growth(measured: Measured) -> str:
    """One row for each quantity: a column for each number of ranks, the power fitted, and the one that it may have."""
    header = ["ranks", *map(str, measured), "power", "may be"]
    rows = [header, *(_row(each, measured) for each in QUANTITIES if values_of(each, measured))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_aligned(row, widths) for row in rows)


def _aligned(row: list[str], widths: list[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]).rstrip()


def _row(quantity: Quantity, measured: Measured) -> list[str]:
    values, power = values_of(quantity, measured), power_of(quantity, measured)
    mark = "!" if grows_too_fast(quantity, measured) else ""
    cells = [amount(values[ranks], quantity.unit) if ranks in values else "" for ranks in measured]
    return [quantity.text, *cells, "" if power is None else f"{power:.2f}{mark}", f"{quantity.may:g}"]


def amount(value: float, unit: Unit) -> str:
    """`1.2 ms`, `35 MB`, `78`, `0.02`."""
    if unit is Unit.COUNT:
        return f"{value:.0f}" if value == int(value) else f"{value:.3f}"
    scales = (
        ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if unit is Unit.SECONDS else ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    )
    scale, name = next((each for each in scales if value >= each[0]), scales[-1])
    return f"{value / scale:.3g} {name}" if value < 1000 * scale else f"{value / scale:.0f} {name}"


def as_json(measured: Measured) -> list[dict[str, Any]]:
    """The same rows."""
    return [
        {
            "name": each.name,
            "text": each.text.strip(),
            "unit": each.unit,
            "values": values_of(each, measured),
            "power": power_of(each, measured),
            "may_be": each.may,
        }
        for each in QUANTITIES
        if values_of(each, measured)
    ]
