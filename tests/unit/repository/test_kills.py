"""What `python -m benchmarks.kills` takes from the notes of a training's ranks."""

from __future__ import annotations

from pathlib import Path

from benchmarks.kills.notes import Notes

NOTES = """\
1.0 10 samples 1 5 3
1.1 10 step 1
2.0 10 samples 2 4 2
2.1 10 step 2
2.5 10 step 3
4.0 20 samples 2 4 2
4.1 20 step 2
4.2 20 step 3
4.4 20 step 4
4.5 20 samples 5 9"""


def test_the_way_back_ends_with_the_first_step_that_is_new_and_ended_by_a_process_that_is(tmp_path: Path) -> None:
    (tmp_path / "rank-0.txt").write_text(NOTES)
    notes = Notes.read(tmp_path)
    back_s = notes.back_s(2.2)  # step 2 was over; a survivor ended step 3 afterwards, which does not count
    assert back_s is not None
    assert round(back_s, 6) == 2.0
    assert notes.back_s(4.4) is None


def test_the_samples_of_a_step_are_those_of_all_starts_without_a_line_that_was_cut(tmp_path: Path) -> None:
    (tmp_path / "rank-0.txt").write_text(NOTES)
    assert Notes.read(tmp_path).samples == {1: {5, 3}, 2: {4, 2}}
