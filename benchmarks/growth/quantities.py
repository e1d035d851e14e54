"""What is measured for each number of ranks, and with which power of it it may grow at most.

All ranks share this machine's cores, and each has to run at least once in a collective, so a time may grow with the first power.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """What the numbers are."""

    SECONDS = "s"
    BYTES = "bytes"
    COUNT = "count"


@dataclass(frozen=True)
class Quantity:
    """One row of the table."""

    name: str
    """What the program in the ranks calls it."""
    text: str
    unit: Unit
    may: float
    """The greatest power of the number of ranks."""


def _rows(unit: Unit, *rows: tuple[str, str, float]) -> list[Quantity]:
    return [Quantity(name, text, unit, may) for name, text, may in rows]


QUANTITIES = [
    *_rows(
        Unit.SECONDS,
        ("to_script_s", "start to the script's first line", 1),
        ("to_first_s", "start to the first all_reduce", 1),
        ("all_reduce_4B_s", "all_reduce of 4 B", 1),
        ("barrier_s", "barrier", 1),
        ("all_reduce_1MiB_s", "all_reduce of 1 MiB", 1),
        ("ring_s", "a message to the next rank", 1),
        ("new_group_s", "new_group", 1),
        ("more_groups_s", "nine more groups", 1),
        ("named_s", "kill -9 of a rank until it is named", 1),
        ("gone_s", "until all are gone", 1),
        ("prepare_s", "init and prepare", 1),
        ("step_s", "a step of a small model", 1),
        ("lost_s", "a rank replaced in a step: no step for", 1),
    ),
    *_rows(
        Unit.COUNT,
        ("rank_files", "descriptors of a rank", 1),
        ("rank_pidfds", "  of other ranks' processes", 1),
        ("rank_files_10_groups", "  with ten more groups", 1),
        ("rank_mappings", "mappings of a rank", 0),
        ("launcher_files", "descriptors of the launcher", 1),
        ("launcher_mappings", "mappings of the launcher", 1),
        ("launcher_cores", "cores that the launcher uses", 1),
        ("nursery_files", "descriptors of the nursery", 0),
        ("keys_meeting", "keys of the first meeting", 1),
        ("keys_new_group", "keys of a new group", 1),
    ),
    *_rows(
        Unit.BYTES,
        ("rank_address_bytes", "addresses of a rank", 1),
        ("group_bytes", "  of them a group's memory", 1),
        ("group_touched_bytes", "pages of a group's memory", 1),
        ("touched_10_groups_bytes", "  with ten more groups", 1),
        ("rank_pss_bytes", "memory of a rank (PSS)", 0),
        ("all_pss_bytes", "memory of all ranks (PSS)", 1),
        ("launcher_pss_bytes", "memory of the launcher", 1),
        ("nursery_pss_bytes", "memory of the nursery", 0),
    ),
]
