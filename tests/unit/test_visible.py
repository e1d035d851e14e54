"""Text from elsewhere cannot act on a terminal, wherever it is shown."""

from __future__ import annotations

import io
import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from samebits.cli.under_way import screen
from samebits.errors import RankFailed, RankMisused, UsageError, mistake_text
from samebits.launcher.terminal.terminal import columns, cut, folded
from samebits.machine.visible import hung, visible, visible_lines, without_colours

ANY = st.text(st.characters())  # with halves of surrogate pairs
ACTS = {"Cc", "Zl", "Zp", "Cs"}


@given(ANY)
def test_nothing_that_acts_on_a_terminal_is_left_and_the_rest_stays(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(letter) in ACTS for letter in shown if letter != "\t")
    assert visible(shown) == shown
    assert shown.encode().decode() == shown
    assert visible_lines(text).split("\n") == [visible(line) for line in text.split("\n")]
    assert all(line.startswith("  ") for line in hung(text).split("\n")[1:])
    if text.isprintable():
        assert shown == text


def test_it_is_shown_as_python_would_write_it() -> None:
    assert visible("a\x1b[2J\r\n\x9b\x7f\u202e\udcff\tz é 中 👨\u200d👩") == (
        r"a\x1b[2J\r\n\x9b\x7f\u202e\xff" "\tz é 中 👨\u200d👩"
    )  # fmt: skip
    assert without_colours("\x1b[1;31mERROR\x1b[0m \x1b[2K") == "ERROR \x1b[2K"


def test_our_own_exceptions_say_it_so() -> None:
    mistake = UsageError("no file \x1b[2J\nnext", "Use\r it.")
    assert str(mistake) == "no file \\x1b[2J\nnext Use\\r it."
    assert str(pickle.loads(pickle.dumps(mistake))) == str(mistake)
    for failed in (RankFailed("died", 1, "text", 3), RankMisused("It is wrong.", "Use x.", 2, "", 2)):
        again = pickle.loads(pickle.dumps(failed))
        assert (str(again), vars(again)) == (str(failed), vars(failed))
    assert mistake_text(mistake.problem, mistake.fix) == "error: no file \\x1b[2J\n  next\nhelp: Use\\r it."


def test_a_table_shows_it_so() -> None:
    console = screen()
    console.file = io.StringIO()
    table = Table()
    table.add_column()
    table.add_row("a\x1b[2Jb")
    console.print(table)
    console.print(Text("c\x9bd\x1b]0;e"), soft_wrap=True)
    assert r"a\x1b[2Jb" in console.file.getvalue()
    assert console.file.getvalue().endswith(r"c\x9bd\x1b]0;e" "\n")  # fmt: skip


@pytest.mark.parametrize("columns", ["0", "1", "-5", "abc"])
def test_a_table_keeps_its_texts_where_there_are_no_columns(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    console = screen()
    console.file = io.StringIO()
    table = Table()
    table.add_column()
    table.add_row("something to read")
    console.print(table)
    assert "something to read" in console.file.getvalue()


def test_lines_that_are_broken_stay_whole() -> None:
    console = screen()
    console.file, console.width = io.StringIO(), 20
    words = "each lane normalises its own samples, as a rank does"
    console.print(Text(words))
    console.print(Text("Traceback:\n  boom\x1b[2J"), soft_wrap=True)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert " ".join(lines[:-2]) == words
    assert lines[-2:] == ["Traceback:", r"  boom\x1b[2J"]


@given(st.text(st.sampled_from("abc 中é\u0301"), max_size=60), st.integers(4, 30))
def test_folded_text_has_the_same_words_and_fits(text: str, most: int) -> None:
    rows = folded(text, most)
    assert " ".join(rows).split() == text.split()
    assert all(columns(row) <= most or " " not in row.strip(" ") for row in rows)
    assert columns(cut(text, most)) <= most
    assert text.startswith(cut(text, most))
