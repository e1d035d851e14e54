"""What `verify` and `bench` say while a run is under way."""

import os
import pty
import re
import subprocess
import sys

import pytest

from samebits.cli import under_way
from samebits.cli.under_way import EVERY_S, FIRST_S, PLAIN_S, UnderWay, wait_s
from tests.support.launching import until

ON_A_TERMINAL = """
import sys
from samebits.cli.under_way import UnderWay
said = UnderWay(is_quiet=len(sys.argv) > 1)
said.begin("round 1 of 5: a\\x1bb " + "very " * 40 + "long title")
sys.stdin.read()
said.note("a copy")
said.end("round 1 of 5 in 3.0 s")
"""


def on_a_terminal(*words: str, until_said: str = "") -> str:
    """What the lines above say on a terminal of 80 columns that closes its standard input when it has read this."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", ON_A_TERMINAL, *words], stdin=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    text = ""
    while until_said not in text:
        text += os.read(ours, 1 << 16).decode()
    assert process.stdin is not None
    process.stdin.close()
    try:
        while True:
            text += os.read(ours, 1 << 16).decode()
    except OSError:  # closed by the other side
        pass
    os.close(ours)
    assert process.wait() == 0
    return text


def test_a_terminal_shows_the_seconds_in_one_row() -> None:
    text = on_a_terminal(until_said="… 3 s")
    rows = [row for row in re.split(r"\r\x1b\[K|\r\n", text) if row]
    assert all(len(row) <= 80 for row in rows)
    assert "… 2 s" in text
    assert "\x1bb" not in text
    assert rows[-3:] == ["note: a copy", rows[0], "round 1 of 5 in 3.0 s"], rows


def test_a_quiet_command_says_only_what_a_person_should_know() -> None:
    assert re.sub(r"\r\x1b\[K", "", on_a_terminal("quiet")) == "note: a copy\r\n"


def test_without_a_terminal_there_is_a_line_now_and_then(capfd: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(under_way, "PLAIN_S", 0.05)
    monkeypatch.setattr(under_way, "FIRST_S", 0.0)
    said, lines = UnderWay(), ""
    said.begin("1 rank")

    def two_lines() -> bool:
        nonlocal lines
        lines += capfd.readouterr().err
        return lines.count("\n") >= 2

    until(two_lines, "two lines")
    said.end("1 rank … 3.1 s")
    lines += capfd.readouterr().err
    assert re.fullmatch(r"(1 rank … \d s so far\n){2,}1 rank … 3\.1 s\n", lines), lines


def test_it_is_shown_at_the_seconds_that_follow() -> None:
    assert [wait_s(lasts, updates=True) for lasts in (0.0, 1.5, 2.0, 2.25)] == [FIRST_S, 0.5, EVERY_S, 0.75]
    assert [wait_s(lasts, updates=False) for lasts in (0.0, 29.0, 31.0)] == [PLAIN_S, 1.0, 29.0]
