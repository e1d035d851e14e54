"""The sizes of pieces, as a decision from the caches; and the caches, as the kernel tells them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.machine.cores import caches
from samebits.rank.transport.local.tuning import (
    LEAST_STREAMED,
    LEAST_SWAPPED,
    MOST_STREAMED,
    MOST_SWAPPED,
    Sizes,
    sizes_for,
)

KIB, MIB = 1 << 10, 1 << 20


def told(root: Path, *of_index: tuple[str, str, str]) -> Path:
    """Files as the kernel writes them: level, type and size of each cache."""
    for index, content in enumerate(of_index):
        folder = root / "cpu3" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in zip(("level", "type", "size"), content, strict=True):
            (folder / name).write_text(text + "\n")
    return root


def test_the_caches_that_hold_data_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    all_four = ("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K"), ("3", "Unified", "32768K")
    assert caches(3, told(tmp_path, *all_four)) == {1: 48 * KIB, 2: MIB, 3: 32 * MIB}
    assert caches(4, tmp_path) == {}, "a CPU that the kernel says nothing about"


@pytest.mark.parametrize(
    "odd", [("2", "Unified", "-1K"), ("2", "Unified", "1e30K"), ("2", "Unified", "9" * 40 + "K"), ("x", "Unified", "1K"), ("", "", ""),
            ("2", "Unified", "0K"), ("2", "Unified", "1\udcffK".encode("utf-8", "surrogateescape").decode("latin-1"))]
)  # fmt: skip
def test_a_cache_that_no_machine_has_does_not_count(tmp_path: Path, odd: tuple[str, str, str]) -> None:
    assert caches(3, told(tmp_path, odd)) == {}


def test_pieces_fill_the_second_cache_and_the_third_one_is_passed_by_what_does_not_fit() -> None:
    assert sizes_for({1: 48 * KIB, 2: MIB, 3: 32 * MIB}) == Sizes(256 * KIB, 32 * MIB)
    assert sizes_for({2: 512 * KIB, 3: 8 * MIB}) == Sizes(128 * KIB, 8 * MIB)
    assert sizes_for({}) == Sizes(), "a machine that does not tell"


@given(st.dictionaries(st.integers(1, 4), st.integers(0, 1 << 60)))
def test_whatever_the_caches_the_sizes_are_within_limits(found: dict[int, int]) -> None:
    sizes = sizes_for(found)
    assert LEAST_SWAPPED <= sizes.swapped <= MOST_SWAPPED
    assert LEAST_STREAMED <= sizes.streamed_from <= MOST_STREAMED
