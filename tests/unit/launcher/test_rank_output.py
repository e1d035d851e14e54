"""Which lines of the other ranks reach the terminal."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from samebits.launcher.terminal.rank_output import BURST, HOLD_S, LINES_PER_S, RECENT_S, LineCutter, OtherRanks

LOGS = {rank: Path(f"logs/{rank}.log") for rank in range(4)}


def test_lines_come_out_whole_however_the_bytes_arrive() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"first\nsec") == ["first"]
    assert cutter.feed(b"ond\nthird") == ["second"]
    assert cutter.end() == ["third"]
    assert cutter.end() == []


@given(st.lists(st.text(alphabet="abc é", max_size=5).map(str.rstrip), max_size=6), st.integers(1, 7))
def test_cutting_does_not_depend_on_the_pieces(lines: list[str], size: int) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    cutter = LineCutter()
    cut = [line for start in range(0, len(data), size) for line in cutter.feed(data[start : start + size])]
    assert cut == lines


def test_a_progress_bar_is_one_line_as_on_a_terminal() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"\r 10%") == []
    assert cutter.feed(b"\r 50%\r100%\n") == ["100%"]
    assert cutter.feed(b"windows\r\n") == ["windows"]


def test_colours_of_a_log_library_are_left_out_and_the_same_line_is_still_the_same() -> None:
    assert LineCutter().feed(b"\x1b[32m\x1b[1mINFO\x1b[0m ready \x1b[2J\n") == ["INFO ready \x1b[2J"]


def test_a_bar_without_an_end_does_not_grow_for_ever() -> None:
    cutter = LineCutter()
    for percent in range(10_000):
        assert cutter.feed(b"\r%6d" % percent) == []
    assert cutter.end() == ["  9999"]


def test_another_ranks_line_is_shown_with_its_rank() -> None:
    others = OtherRanks(LOGS)
    others.add(3, "hello", 0.0)
    assert others.due(HOLD_S / 2) == []
    assert others.next_due() == HOLD_S
    assert others.due(HOLD_S) == ["[rank 3] hello"]
    assert others.next_due() is None


def test_a_line_that_rank_0_printed_before_or_shortly_after_is_not_repeated() -> None:
    others = OtherRanks(LOGS)
    others.saw("epoch 1", 0.0)
    others.add(1, "epoch 1", 0.1)
    others.add(1, "epoch 2", 1.0)
    others.saw("epoch 2", 1.0 + HOLD_S / 2)
    assert others.due(5.0) == []


def test_a_line_of_several_other_ranks_is_shown_once() -> None:
    others = OtherRanks(LOGS)
    for rank in (1, 2, 3):
        others.add(rank, "a warning", 0.0)
    assert others.due(1.0) == ["[rank 1] a warning"]


def test_an_old_line_may_be_shown_again() -> None:
    others = OtherRanks(LOGS)
    others.add(1, "slow", 0.0)
    assert others.due(1.0) == ["[rank 1] slow"]
    others.add(1, "slow", 2 * RECENT_S)
    assert others.due(3 * RECENT_S) == ["[rank 1] slow"]


def test_a_flood_is_limited_and_counted() -> None:
    others = OtherRanks(LOGS)
    for number in range(214 + BURST):
        others.add(3, f"line {number}", 0.0)
    assert len(others.due(HOLD_S)) == BURST
    assert others.end() == ["[rank 3] 214 more lines in logs/3.log"]


def test_after_a_pause_the_count_comes_first_and_lines_flow_again() -> None:
    others = OtherRanks(LOGS)
    for number in range(BURST + 1):
        others.add(2, f"line {number}", 0.0)
    others.due(HOLD_S)
    others.add(2, "calm", 10.0)
    assert others.due(10.0 + HOLD_S) == ["[rank 2] 1 more line in logs/2.log", "[rank 2] calm"]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200))
def test_no_rank_shows_more_than_its_rate(times: list[float]) -> None:
    others = OtherRanks(LOGS)
    shown = 0
    for number, time in enumerate(sorted(times)):
        others.add(1, str(number), time)
        shown += sum("more line" not in line for line in others.due(time))
    shown += sum("more line" not in line for line in others.end())
    assert shown <= BURST + LINES_PER_S * (max(times) + HOLD_S - min(times)) + 1


def test_nothing_is_lost_at_the_end() -> None:
    others = OtherRanks(LOGS)
    others.add(1, "last words", 7.0)
    assert others.end() == ["[rank 1] last words"]
