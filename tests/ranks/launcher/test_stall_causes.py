"""Why a rank does not come for which others wait: the sentence says so, also where its memory may not be read."""

import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

import samebits
from tests.support.launching import run_script, said, start_python, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

PLAIN = """
import os, re, subprocess, sys, threading, time
import torch, torch.distributed as dist

dist.init_process_group("samebits")
rank = dist.get_rank()


def endless():
    while True:
        pass


def late():
    match sys.argv[1]:
        case "loop":
            endless()
        case "sleep":
            time.sleep(600)
        case "native":
            re.match("(a+)+$", "a" * 40 + "b")
        case "child":
            subprocess.run(["sleep", "600"])
        case "thread":
            threading.Thread(target=raises).start()
            over.wait()


def raises():
    raise RuntimeError("in a thread")
    over.set()


over = threading.Event()
if rank == 1:
    late()
dist.all_reduce(torch.ones(4))
"""

CAUSES = {
    "loop": r"script.py:1[01] in endless and uses [\d.]+ cores",
    "sleep": r"script.py:19 in late and uses no processor time",
    "native": r"script.py:21 in late and uses [\d.]+ cores: it is inside match \(\S+__.py:\d+\)",
    "child": r"script.py:23 in late and uses no processor time: it is inside (Popen.)?_try_wait \(subprocess.py:\d+\)",
    "thread": r"script.py:26 in late and uses no processor time: it is inside (Condition.)?wait \(threading.py:\d+\)",
}

LIMITS = dict.fromkeys(("loop", "native"), ("--stall-after", "5"))
"""What uses the processor may work: only a limit of the user ends it."""


def stalled(done):
    """The one sentence about the rank that is missing."""
    (sentence,) = said(done, "FAILED")
    assert "rank 1 has not reached all_reduce" in sentence
    return sentence


@promise(
    "never-stuck-nothing-left-behind",
    "A rank that stands still is named with its line, and the function of a library in which that line waits",
)
@pytest.mark.parametrize(
    "how", ["thread", *(pytest.param(how, marks=pytest.mark.thorough) for how in CAUSES if how != "thread")]
)
def test_the_sentence_says_where_a_rank_is_that_does_not_come(tmp_path, how):
    done = run_script(tmp_path, PLAIN, "-n", "2", "--on-stall", "stop", *LIMITS.get(how, ()), args=(how,))
    assert done.code == 1, done.err
    assert re.search(CAUSES[how], stalled(done)), done.err


def start_without_py_spy(place: Path, *options: str):
    """Run samebits by the interpreter that this environment was made from: there is no py-spy beside it."""
    python = Path(sys.executable).resolve()
    path = os.pathsep.join([str(Path(samebits.__file__).parents[1]), sysconfig.get_path("purelib")])
    if python.with_name("py-spy").exists() or Path("/usr/bin/py-spy").exists():
        pytest.skip("py-spy is beside the interpreter that this environment was made from")
    return start_python(
        place,
        *("-m", "samebits", "run", *options),
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        python=str(python),
    )


@promise(
    "never-stuck-nothing-left-behind",
    "Where its memory cannot be read a rank is asked by a signal, and goes on; a wait for gradients names "
    "the bucket; ranks that wait for each other are named as a circle",
    also=[
        "test_what_was_interrupted_goes_on",
        "test_the_bucket_and_its_first_parameter_are_noted",
        "test_groups_that_are_used_in_crossed_order_are_told_as_a_circle",
    ],
)
@pytest.mark.thorough
@pytest.mark.parametrize("how", [pytest.param("sleep", marks=pytest.mark.thorough), "loop"])
def test_a_rank_whose_memory_cannot_be_read_is_asked_for_its_line(tmp_path, how):
    script = write_script(tmp_path, PLAIN)
    options = "-n", "2", "--on-stall", "stop", *LIMITS.get(how, ())
    done = start_without_py_spy(tmp_path, *options, script, how).finish()
    assert done.code == 1, done.err
    where = {"sleep": "script.py:19 in late and uses no", "loop": r"script.py:1[01] in endless and uses [\d.]+ cores"}
    assert re.search(where[how], stalled(done)), done.err
    assert "in late" in (done.folder / "journal" / "rank-00001.stacks").read_text()
    assert (done.folder / "journal" / "rank-00000.stacks").read_text() == ""
