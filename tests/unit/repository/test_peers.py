"""How `make test-peers` judges what other people's libraries did, and that its programs and versions are as stated."""

import re

from tests.peers.__main__ import CONSTRAINTS, PEERS
from tests.peers.outcome import Outcome, all_good, read, table
from tests.support.environment import ROOT, name_of, pinned


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
