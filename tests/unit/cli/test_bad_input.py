"""Whatever is wrong with options, script, environment or place: one sentence with the way out, 2, nothing begun or left.

In this process, with everything that could start another one blocked: a case takes milliseconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from samebits.cli.main import main
from samebits.cli.program import check_program
from samebits.launcher.sizing import Machine, Size, Wish, size
from samebits.machine.cores import Cores
from tests.support.promises import promise

Prepare = Callable[[Path], object]


@dataclass(frozen=True)
class Refused:
    """What a command that was refused said."""

    code: int
    err: str

    @property
    def sentence(self) -> str:
        """The problem and the fix, each of which has a line."""
        problem, fix = self.err.splitlines()
        assert problem.startswith("error: ")
        assert fix.startswith("help: ")
        return f"{problem[7:]} {fix[6:]}"


@dataclass(frozen=True)
class Command:
    """The command line in this process, in a folder of its own."""

    place: Path
    monkeypatch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Refused:
        def started(*_: object, **__: object) -> None:
            raise AssertionError("something was started")

        for module, name in ((os, "posix_spawn"), (os, "fork"), (subprocess, "Popen")):
            self.monkeypatch.setattr(module, name, started)
        self.monkeypatch.setattr(sys, "argv", ["samebits", *words])
        before = sorted(self.place.rglob("*"))
        with pytest.raises(SystemExit) as ending:
            main()
        shown = self.capfd.readouterr()
        assert shown.out == ""
        assert sorted(self.place.rglob("*")) == before, "nothing is left"
        return Refused(int(ending.value.code or 0), shown.err)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "x.py").write_text("raise AssertionError('started')\nimport samebits\nsamebits.init()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Command(tmp_path, monkeypatch, capfd)


@promise(
    "bad-input-and-what-a-person-is-told",
    "Numbers of ranks or threads that cannot be, scripts and modules that cannot run, and names and "
    "places that can be no run folder are one sentence with exit code 2; nothing is started or left",
    also=[
        "test_threads_of_the_environment_that_cannot_be",
        "test_a_script_that_cannot_run_is_told_before_ranks_start",
        "test_a_module_that_cannot_run_is_told_before_ranks_start",
        "test_a_name_that_names_no_folder",
        "test_a_place_where_no_run_folder_can_be",
        "test_a_run_folder_of_another_run_stays_as_it_is",
        "test_a_folder_that_was_removed_is_named",
    ],
)
@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("0", "-n must be at least 1, but is 0. Start with -n 1, or -n auto."),
        ("-1", "-n must be at least 1, but is -1. Start with -n 1, or -n auto."),
        *((word, f"-n must be a number of ranks or `auto`, but is {word!r}.") for word in (
            "abc", "1e9", "2.5", "", " 2", "+2", "1_0", "\u0661", "cuda", "9" * 5000, "\x1b[2J",
        )),
        ("9" * 25, f"{'9' * 25} ranks are too many:"),
        ("gpu", "No GPU that the installed torch can use was found here. Start with --device cpu."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["-n", "--nproc-per-node"])
def test_a_number_of_ranks_that_cannot_be(command: Command, option: str, number: str, sentence: str) -> None:
    command.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    refused = command("run", option, number, "x.py")
    assert refused.code == 2
    assert "\x1b" not in refused.err
    if not number.startswith(("\x1b", "999999999999999999999999999")):
        assert refused.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        *((word, f"OMP_NUM_THREADS must be a number of threads, but is {word!r}. Unset it, or give --threads.")
          for word in ("abc", "-1", "0", "1.5", ",2", "two")),
        ("1000000", "OMP_NUM_THREADS must be at most 1024, but is 1000000."),
    ],
)  # fmt: skip
def test_threads_of_the_environment_that_cannot_be(command: Command, value: str, sentence: str) -> None:
    command.monkeypatch.setenv("OMP_NUM_THREADS", value)
    for words in (("run", "-n", "1"), ("verify", "--ranks", "1,2"), ("bench",)):
        refused = command(*words, "x.py")
        assert (refused.code, refused.sentence[: len(sentence)]) == (2, sentence)


@pytest.mark.parametrize(("value", "threads"), [("3", 3), ("4,2", 4), (" 2 ", 2), ("", 6)])
def test_threads_of_the_environment_as_openmp_writes_them(value: str, threads: int) -> None:
    decided = size(Wish("2"), Machine(Cores(12, "affinity"), 0, omp_threads=value))
    assert isinstance(decided, Size)
    assert decided.threads == threads


def test_an_option_beats_threads_of_the_environment_that_cannot_be() -> None:
    assert size(Wish("2", threads=3), Machine(Cores(12, "affinity"), 0, omp_threads="abc")).threads == 3


@pytest.mark.parametrize(
    ("option", "value", "most"),
    [
        ("--threads", "100000000", "--threads must be at most 1024"),
        ("--lanes", "10000000", "`lanes` must be at most 65536"),
    ],
)
def test_more_threads_or_lanes_than_anything_has(command: Command, option: str, value: str, most: str) -> None:
    refused = command("run", "-n", "1", option, value, "x.py")
    assert (refused.code, refused.sentence.partition(". ")[0]) == (2, f"{most}, but is {value}")


def package(place: Path) -> None:
    (place / "whole" / "inner").mkdir(parents=True)
    (place / "whole" / "__init__.py").touch()
    (place / "whole" / "part.py").touch()


def archive(place: Path) -> None:
    with zipfile.ZipFile(place / "packed.zip", "w") as file:
        file.writestr("__main__.py", "print(1)")


WRONG_SCRIPTS: dict[str, tuple[bytes | Prepare, str]] = {
    "no.py": (lambda _: None, "There is no script no.py. Check the path."),
    "-": (lambda _: None, "There is no script -. Check the path."),
    "folder": (lambda place: (place / "folder").mkdir(), "folder is a folder."),
    "fifo.py": (lambda place: os.mkfifo(place / "fifo.py"), "fifo.py is a FIFO, not a script that every rank can"),
    "binary": (b"\x7fELF\x02\x01\x01\0\0", "binary is not Python source: it has zero bytes. Give the script as text."),
    "packed.zip": (archive, "packed.zip is not Python source: it has zero bytes."),
    "zero.py": (b"print(1)\n\0\n", "zero.py is not Python source: it has zero bytes."),
    "text.txt": (b"this is a letter\n", "text.txt is not Python: line 1: invalid syntax: this is a letter."),
    "wrong.py": (b"import torch\ndef f(:\n    pass\n", "wrong.py is not Python: line 2: invalid syntax: def f(:. Check that line; no rank was started."),
    "indent.py": (b"def f():\nreturn 1\n", "indent.py is not Python: line 2: expected an indented block"),
    "tabs.py": (b"if 1:\n\tx = 1\n        y = 2\n", "tabs.py is not Python: line 3: inconsistent use of tabs"),
    "open.py": (b"x = (1,\n", "open.py is not Python: line 1: '(' was never closed"),
    "codec.py": (b"# -*- coding: klingon -*-\n", "codec.py is not Python: unknown encoding: klingon."),
    "latin.py": (b"print('\xe9')\n", "latin.py is not Python: "),
    "await.py": (b"await f()\n", "await.py is not Python: line 1: 'await' outside function"),
    "evil.py": (b"x = \x1b[2J '\xe2\x80\xae\n", r"evil.py is not Python: line 1: invalid non-printable character U+001B: x = \x1b[2J '\u202e."),
    "deep.py": (b"(" * 5000 + b")" * 5000, "deep.py is not Python: line 1: too many nested parentheses: ((("),
    "book.ipynb": (b'{"cells": []}', "book.ipynb is a notebook, not a script. Call samebits.spawn in it,"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WRONG_SCRIPTS))
@pytest.mark.parametrize("words", [("run", "-n", "2"), ("verify",), ("bench",)], ids=lambda words: words[0])
def test_a_script_that_cannot_run_is_told_before_ranks_start(
    command: Command, words: tuple[str, ...], name: str
) -> None:
    content, sentence = WRONG_SCRIPTS[name]
    if isinstance(content, bytes):
        (command.place / name).write_bytes(content)
    else:
        content(command.place)
    refused = command(*words, name)
    assert refused.code == 2
    assert refused.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("whole", "There is no module whole that can be run. Check the name; a package needs __main__.py."),
        ("whole.inner", "There is no module whole.inner that can be run."),
        ("whole.none", "There is no module whole.none that can be run."),
        ("whole.part.none", "There is no module whole.part.none that can be run."),
        ("json.none", "There is no module json.none that can be run."),
        ("whole..part", "There is no module whole..part here."),
        ("wrong", "wrong.py is not Python: line 1: invalid syntax: def f(:."),
        ("./x.py", "./x.py is a script, but -m takes a module."),
    ],
)
def test_a_module_that_cannot_run_is_told_before_ranks_start(command: Command, module: str, sentence: str) -> None:
    package(command.place)
    (command.place / "wrong.py").write_text("def f(:\n")
    refused = command("run", "-n", "2", "-m", module)
    assert refused.code == 2
    assert refused.sentence.startswith(sentence)


@pytest.mark.parametrize("name", ["whole.part", "timeit", "x", "book", "elsewhere.found"])
def test_what_can_run_is_let_through(command: Command, name: str) -> None:
    package(command.place)
    (command.place / "book.py").write_bytes(
        b"\xef\xbb\xbf# -*- coding: utf-8 -*-\nx = '\\d'  # Python warns about that\n"
    )
    (command.place / "elsewhere").mkdir()
    (command.place / "elsewhere" / "__init__.py").write_text("__path__.append('/somewhere/else')")
    check_program(name, is_module=True, command="run")
    check_program("book.py", is_module=False, command="run")


def test_a_folder_that_was_removed_is_named(command: Command) -> None:
    gone = command.place / "gone"
    gone.mkdir()
    command.monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (("run", "../x.py"), ("verify", "-m", "x"), ("bench", "/dev/null"), ("doctor",)):
        refused = command(*words)
        assert refused.code == 2
        assert refused.sentence == (
            "The folder in which this command was started cannot be used: No such file or directory. "
            "Change to one that exists: it may have been removed."
        )


@pytest.mark.parametrize("name", ["a/b", "../x", "..", ".", "", " ", "x\ny", "\x1b[2J", "\u202eevil", "x" * 300])
def test_a_name_that_names_no_folder(command: Command, name: str) -> None:
    for more in ((), ("--save-every", "epoch")):
        refused = command("run", "--name", name, *more, "x.py")
        assert refused.code == 2
        assert refused.sentence.startswith("--name ")
        assert refused.err.isprintable() or refused.err.replace("\n", "").isprintable()


@pytest.mark.parametrize("base", ["x.py", "/proc/none", "x" * 300])
def test_a_place_where_no_run_folder_can_be(command: Command, base: str) -> None:
    refused = command("run", "-n", "1", "--log-dir", base, "x.py")
    assert refused.code == 2
    assert "No run folder can be created in" in refused.err


def test_a_run_folder_of_another_run_stays_as_it_is(command: Command) -> None:
    (command.place / "samebits-runs" / "mine").mkdir(parents=True)
    (command.place / "samebits-runs" / "mine" / "plan.json").write_text("{}")
    assert "A run named mine already exists" in command("run", "-n", "1", "--name", "mine", "x.py").sentence
    assert (
        "is the run folder of one start" in command("run", "--name", "mine", "--save-every", "epoch", "x.py").sentence
    )
