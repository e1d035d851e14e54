"""The terminal: output as it is, own lines whole, and one progress line that gives way."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebits.launcher.event_log import EventLog
from samebits.launcher.folder import make_run_folder
from samebits.launcher.request import EntryPoint, LaunchRequest, Output, Placement
from samebits.launcher.supervise.observer import PLAIN_LINE_S, FirstLines, Observer
from samebits.launcher.terminal.cases import Cases, Losses
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import (
    END_OF_STRING,
    END_OF_STYLES,
    ERASE,
    ERR,
    OUT,
    Console,
    Terminal,
    columns,
)
from samebits.protocol.journal.gauges import Gauges
from samebits.protocol.journal.ring import JournalWriter, Phase
from tests.support.promises import promise


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal: what is read from the first was written to the second."""
    controller, terminal = pty.openpty()
    yield controller, terminal
    os.close(controller)
    os.close(terminal)


def shown(controller: int) -> bytes:
    text = b""
    while select.select([controller], [], [], 0.1)[0]:  # one read may return a part
        text += os.read(controller, 65536)
    return text


def test_the_progress_line_gives_way_to_output_and_lines(screen: tuple[int, int]) -> None:
    controller, descriptor = screen
    terminal = Terminal({"NO_COLOR": "1"}, descriptor, descriptor)
    terminal.progress("step 1")
    terminal.pass_through(OUT, b"from rank 0\n")
    terminal.progress("step 2")
    terminal.say("[rank 1] hello")
    terminal.progress("step 3")
    terminal.progress(None)
    erase = ERASE
    assert shown(controller) == (
        erase + b"step 1" + erase + b"from rank 0\r\n" + erase + b"step 2" + erase + b"[rank 1] hello\r\n"
        + erase + b"step 3" + erase
    )  # fmt: skip


def test_an_unfinished_line_such_as_a_prompt_is_not_written_over(screen: tuple[int, int]) -> None:
    controller, descriptor = screen
    terminal = Terminal({}, descriptor, descriptor)
    terminal.pass_through(OUT, b"(Pdb) ")
    terminal.progress("step 1")
    assert shown(controller) == b"(Pdb) "
    terminal.say("note")
    assert shown(controller).replace(b"\r", b"") == b"\nnote\n"


def test_colours_are_for_terminals_that_want_them(screen: tuple[int, int], tmp_path: Path) -> None:
    _, descriptor = screen
    assert "\x1b[" in Terminal({}, descriptor, descriptor).style("done", "\x1b[1m")
    assert Terminal({"NO_COLOR": "1"}, descriptor, descriptor).style("done", "\x1b[1m") == "done"
    assert Terminal({"TERM": "dumb"}, descriptor, descriptor).style("done", "\x1b[1m") == "done"
    with (tmp_path / "file").open("wb") as file:
        assert Terminal({}, file.fileno(), file.fileno()).style("done", "\x1b[1m") == "done"


def test_a_reader_that_has_gone_away_does_not_end_the_run() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    terminal = Terminal({}, writing, writing)
    terminal.pass_through(OUT, b"nobody reads this\n")
    terminal.say("nor this")
    assert terminal.lost == {}
    os.close(writing)


@promise(
    "bad-input-and-what-a-person-is-told",
    "Escape codes, carriage returns and newlines from ranks, exceptions and names neither act on a "
    "terminal nor look like a line of the launcher, in failure blocks, tables and names in files too",
    also=[
        "test_nothing_that_was_raised_or_named_looks_like_a_line_of_the_launcher",
        "test_a_table_shows_it_so",
        "test_a_name_in_a_file_does_not_act_on_the_terminal",
    ],
)
def test_what_comes_from_elsewhere_cannot_act_on_the_terminal(screen: tuple[int, int]) -> None:
    controller, descriptor = screen
    terminal = Terminal({"NO_COLOR": "1"}, descriptor, descriptor)
    console = Console(terminal)
    console.line(Line("logs", "runs/a\x1b[2Jb\ndone      forged"))
    console.plain("[rank 1] \r[rank 0] \x1b]0;title\x07")
    console.block("FAILED    rank 0: \x1b[8mnothing\n  \x9b2J")
    terminal.progress("loss\x1b[1A 0.5")
    assert shown(controller).replace(b"\r\n", b"\n") == (
        rb"logs      runs/a\x1b[2Jb\ndone      forged" b"\n" rb"[rank 1] \r[rank 0] \x1b]0;title\x07" b"\n"
        rb"FAILED    rank 0: \x1b[8mnothing" b"\n" rb"  \x9b2J" b"\n" + ERASE + rb"loss\x1b[1A 0.5"
    )  # fmt: skip


@promise(
    "bad-input-and-what-a-person-is-told",
    "Rank 0's colours stay, and what it leaves open ends before the last words; lines fit the terminal",
    also=["test_lines_fit_the_width_of_the_terminal"],
)
def test_colours_of_rank_0_stay_and_what_it_leaves_open_ends_before_the_last_words(screen: tuple[int, int]) -> None:
    controller, descriptor = screen
    terminal = Terminal({"NO_COLOR": "1"}, descriptor, descriptor)
    terminal.pass_through(OUT, b"\x1b[32mgreen\n\x1b]0;a title without an end")
    terminal.say("[rank 1] hello")
    terminal.settle()
    Console(terminal).block("FAILED    rank 0")
    assert shown(controller).replace(b"\r", b"") == (
        b"\x1b[32mgreen\n\x1b]0;a title without an end" + END_OF_STRING + b"\n[rank 1] hello\n"
        + END_OF_STRING + END_OF_STYLES + b"FAILED    rank 0\n"
    )  # fmt: skip


def test_lines_fit_the_width_of_the_terminal(screen: tuple[int, int]) -> None:
    controller, descriptor = screen
    termios.tcsetwinsize(descriptor, (24, 60))
    terminal = Terminal({"NO_COLOR": "1"}, descriptor, descriptor)
    text = "samebits-runs/20261120-171855-digits  (started in 2.18 s: command 0.17, import 1.99, fork 0.02)"
    Console(terminal).line(Line("logs", text))
    Console(terminal).line(Line("logs", "x" * 70))
    lines = shown(controller).decode().splitlines()
    assert lines == [
        "logs      samebits-runs/20261120-171855-digits  (started in",
        "          2.18 s: command 0.17, import 1.99, fork 0.02)",
        f"logs      {'x' * 70}",
    ]
    terminal.progress("손실 0.5 " * 20)
    [line] = shown(controller).decode().removeprefix(ERASE.decode()).splitlines()
    assert columns(line) in (58, 59)


def test_output_that_a_full_disk_swallows_is_told_once() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    terminal = Terminal({}, full, full)
    assert terminal.pass_through(OUT, b"lost\n") == "No space left on device"
    assert terminal.pass_through(OUT, b"lost too\n") == ""
    terminal.say("and this")
    assert terminal.lost == {OUT: "No space left on device", ERR: "No space left on device"}
    os.close(full)


def test_labels_line_up(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        console = Console(Terminal({"SAMEBITS_TIMES": "off"}, OUT, file.fileno()))
        console.line(Line("samebits", "one"))
        console.line(Line("bits", "two"))
    assert (tmp_path / "file").read_text() == "samebits  one\nbits      two\n"


def test_what_is_said_less_loudly_has_a_row_of_its_own_where_it_does_not_fit(screen: tuple[int, int]) -> None:
    controller, descriptor = screen
    termios.tcsetwinsize(descriptor, (24, 60))
    console = Console(Terminal({}, descriptor, descriptor))
    console.line(Line("bits", "9f271aa458c6", "the same with 4 lanes"))
    console.line(Line("bits", "9f271aa458c6", "the same with 4 lanes and 1 thread, on 1 to 4"))
    assert re.sub("\x1b.[0-9]*m", "~", shown(controller).decode()).splitlines() == [
        "~bits      ~9f271aa458c6   ~the same with 4 lanes~",
        "~bits      ~9f271aa458c6",
        "          ~the same with 4 lanes and 1 thread, on 1 to 4~",
    ]


def test_until_the_first_line_is_there_a_terminal_shows_what_it_waits_for(
    screen: tuple[int, int], tmp_path: Path
) -> None:
    controller, descriptor = screen
    request = LaunchRequest(EntryPoint(Path("x.py")), Placement(1, 1, "cpu"), Output(tmp_path / "run"))
    folder = make_run_folder(request)
    losses = Losses(Console(Terminal({"NO_COLOR": "1"}, descriptor, descriptor)), Cases(folder.findings))
    observer = Observer(request, folder, losses, events=EventLog(folder), first_lines=FirstLines())
    began = time.monotonic()
    observer.look(began + 1.5)
    observer.has_begun = True
    observer.look(began + 3.5)
    observer.look(began + PLAIN_LINE_S + 1)
    assert shown(controller) == (
        ERASE + b"importing torch (1 s)" + ERASE + b"starting the script (3 s)"
        + ERASE + b"starting the script (31 s)"
    )  # fmt: skip
    folder.decided.write_text(json.dumps({"lanes": 4, "batch_size": 64, "strategy": "ddp", "lane_sizes": [16] * 4}))
    observer.look(began + PLAIN_LINE_S + 2)
    assert shown(controller) == (
        ERASE + f"samebits  1 rank on cpu, 4 lanes of 16, ddp\r\n          {tmp_path / 'run'}\r\n".encode()
    )  # fmt: skip


def test_where_a_line_cannot_be_written_over_one_comes_every_thirty_seconds(tmp_path: Path) -> None:
    request = LaunchRequest(EntryPoint(Path("x.py")), Placement(1, 1, "cpu"), Output(tmp_path / "run"))
    folder = make_run_folder(request)
    journal = JournalWriter(folder.journal(0))
    folder.decided.write_text(json.dumps({"lanes": 1, "batch_size": 32, "strategy": "single", "lane_sizes": [32]}))
    with (tmp_path / "file").open("wb") as file:
        losses = Losses(
            Console(Terminal({"SAMEBITS_TIMES": "off"}, file.fileno(), file.fileno())), Cases(folder.findings)
        )
        observer = Observer(request, folder, losses, events=EventLog(folder), first_lines=FirstLines())
        for second in range(100):
            journal.gauges(Gauges(step=second + 1, samples=32 * (second + 1)))
            journal.write(Phase.PAUSED if 50 < second < 65 else Phase.COMPUTE, step=second + 1)
            observer.look(float(second))
    lines = (tmp_path / "file").read_text().splitlines()
    assert lines[0] == f"samebits  1 rank on cpu, 1 lane of 32, single   {tmp_path / 'run'}"
    assert [line.split()[:2] for line in lines[1:]] == [["step", "31"], ["step", "66"], ["step", "96"]]
    assert PLAIN_LINE_S == 30.0


def test_lines_are_readable_on_a_very_wide_terminal(screen: tuple[int, int]) -> None:
    controller, descriptor = screen
    termios.tcsetwinsize(descriptor, (24, 200))
    text = "4 lanes, batch 64 = 16 + 16 + 16 + 16, pipeline, 4 stages, 1f1b; same bits elsewhere with 4 lanes, 1 thread each"
    Console(Terminal({"NO_COLOR": "1"}, descriptor, descriptor)).line(Line("lanes", text))
    lines = shown(controller).decode().splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert " ".join(line.strip() for line in lines) == f"lanes     {text}"
