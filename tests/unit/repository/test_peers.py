"""How `make test-peers` judges what other people's libraries did, and that its programs and versions are as stated."""

import re

import pytest

from tests.peers.__main__ import CONSTRAINTS, LAUNCHERS, PEERS
from tests.peers.outcome import Outcome, all_good, read, same, table
from tests.peers.programs import PROGRAMS
from tests.support.environment import ROOT, name_of, pinned


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"loss": [1.0, 2]}, {"loss": [1.0005, 2]}, True),
        ({"loss": [1.0, 2]}, {"loss": [1.01, 2]}, False),
        ({"loss": 1.0}, {"other": 1.0}, False),
        ([1.0], [1.0, 1.0], False),
        (None, None, True),
        (1, 1.0, False),
        (0.0, 1e-4, True),
    ],
)
def test_numbers_are_compared_up_to_rounding_and_shapes_exactly(one, other, expected):
    assert same(one, other) is expected


def test_a_process_that_says_nothing_or_ends_badly_is_no_success():
    assert read(0, 'noise\npeer {"a": 1.5}\n', "", 3.0, tells=True) == Outcome(3.0, numbers={"a": 1.5})
    assert "printed 0 results" in read(0, "noise", "", 3.0, tells=True).trouble
    assert "printed 2 results" in read(0, "peer 1\npeer 1\n", "", 3.0, tells=True).trouble
    assert not read(0, "noise", "", 3.0, tells=False).trouble
    err = "Traceback ...\nValueError: no\nlog  somewhere\n"
    assert read(1, "", err, 3.0, tells=False).trouble == "ValueError: no"
    assert read(1, "", "", 3.0, tells=False).trouble == "exit code 1"


def test_the_table_counts_per_launcher_and_says_what_failed_or_differs():
    rows = {
        "one": {"torchrun": Outcome(1.0, numbers=1.0), "run": Outcome(2.0, numbers=1.0)},
        "two": {"torchrun": Outcome(1.0, numbers=1.0), "run": Outcome(2.0, numbers=3.0)},
        "three": {"torchrun": Outcome(1.0), "run": Outcome(2.0, trouble="RuntimeError: it broke")},
    }
    lines = table(rows, ("torchrun", "run")).splitlines()
    assert [line.split()[-3:-2] for line in lines[1:4]] == [["ok"], ["DIFFERS"], ["FAILED"]]
    assert re.split(r"\s{2,}", lines[4].strip()) == ["3 of 3", "1 of 3"]
    assert lines[5:] == ["two, run: 3.0 is not 1.0", "three, run: RuntimeError: it broke"]
    assert not all_good(rows, "torchrun")
    assert all_good({"one": rows["one"]}, "torchrun")


def test_the_versions_are_pinned_with_the_torch_of_the_suite_and_without_torchvision():
    pins = {name_of(line): line for line in pinned(CONSTRAINTS)}
    assert {"torch", "lightning", "transformers", "accelerate"} <= pins.keys()
    assert set(PEERS) <= pins.keys()
    assert "torchvision" not in pins
    assert pins["torch"] in pinned(ROOT / "constraints.txt")
    assert all("==" in line for line in pins.values())


def test_each_program_is_there_and_each_of_ours_has_a_title_of_its_own():
    scripts = [program.words[0] for program in PROGRAMS if program.tells]
    assert all((ROOT / "tests" / "peers" / "scripts" / script).exists() for script in scripts)
    assert len({program.title for program in PROGRAMS}) == len(PROGRAMS)
    assert list(LAUNCHERS) == ["torchrun", "lockstep run", "lockstep run --backend lockstep"]
