"""Whose memory was short is told by counters before and after, of both versions of control groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from samebits.machine.memory_pressure import (
    MemoryPressure,
    Shortage,
    explain_kill,
    is_calm,
    read_memory_pressure,
    shortage,
)

GB = 10**9
BEFORE = MemoryPressure(kills=4, host_kills=90, reached=7, limit_bytes=2 * GB, available_bytes=GB, total_bytes=16 * GB)


@pytest.mark.parametrize(
    ("now", "short", "said"),
    [
        (BEFORE, None, "sent by another process; the kernel reports no shortage of memory (1.0 of 16.0 GB free)"),
        (
            replace(BEFORE, kills=5, reached=8),
            Shortage.GROUP,
            "the kernel killed it for lack of memory: its control group may use 2.0 GB (the host has 1.0 of 16.0 GB free)",
        ),
        (
            replace(BEFORE, kills=5),
            Shortage.HOST,
            "the kernel killed it for lack of memory: the host has 1.0 of 16.0 GB free",
        ),
        (replace(BEFORE, reached=9), None, "sent by another process"),
        (replace(BEFORE, host_kills=91), None, "another process may have sent it, or the kernel"),
    ],
)
def test_the_group_and_the_host_are_told_apart(now: MemoryPressure, short: Shortage | None, said: str) -> None:
    assert shortage(BEFORE, now) is short
    assert explain_kill(BEFORE, now).startswith(said)


@pytest.mark.parametrize(
    ("changes", "calm"),
    [
        ({}, True),
        ({"kills": 5}, False),
        ({"host_kills": 91}, False),
        ({"reached": 8}, False),
        ({"available_bytes": GB}, False),
        ({"counts": False}, False),
    ],
    ids=str,
)
def test_a_kill_came_from_somebody_else_only_where_nothing_points_to_memory(changes: dict, calm: bool) -> None:
    before = replace(BEFORE, available_bytes=8 * GB)
    assert is_calm(before, replace(before, **changes)) is calm


def test_without_a_limit_it_was_the_host() -> None:
    unlimited = replace(BEFORE, limit_bytes=0)
    assert shortage(unlimited, replace(unlimited, kills=5, reached=8)) is Shortage.HOST


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (
            "0::/job/task\n",
            {
                "job/memory.events": "low 0\noom 3\noom_kill 1\n",
                "job/memory.max": "3000000\n",
                "job/task/memory.events": "low 0\noom 2\noom_kill 1\n",
                "job/task/memory.max": "max\n",
            },
        ),
        (
            "5:cpu:/\n4:hugetlb,memory:/job/task\n0::/\n",
            {
                "memory/job/task/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
                "memory/job/task/memory.failcnt": "5\n",
                "memory/job/task/memory.limit_in_bytes": "3000000\n",
                "memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            },
        ),
    ],
)
def test_both_versions_of_control_groups_are_read_with_those_around(tmp_path: Path, groups: str, files: dict) -> None:
    (tmp_path / "list").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    without = read_memory_pressure(tmp_path / "none", tmp_path / "root")
    found = read_memory_pressure(tmp_path / "list", tmp_path / "root")
    assert (found.kills, without.kills) == (1, 0)
    assert (found.reached, found.limit_bytes) == (5, 3_000_000)
    assert (without.reached, without.limit_bytes) == (0, 0)
    assert 0 < found.available_bytes <= found.total_bytes
