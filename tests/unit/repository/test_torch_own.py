"""How `make test-torch` counts torch's own tests, what it lets in, and that a test that hangs or dies ends alone."""

import json

from tests.torch_own import __main__ as command
from tests.torch_own.tally import Outcome, Tally, passed

GOOD, BAD = Outcome("passed"), Outcome("failed", "ValueError: no")


def test_only_what_gloo_passes_counts_and_a_skip_or_nothing_is_a_failure_of_ours():
    gloo = {"a": GOOD, "b": GOOD, "c": BAD, "d": Outcome("skipped"), "e_cuda": GOOD, "f_cuda": GOOD}
    ours = {"a": GOOD, "b": BAD, "e_cuda": Outcome("skipped", "why"), "c": GOOD}
    tally = Tally(gloo, ours, frozenset({"e_cuda", "f_cuda"}))
    assert passed(gloo) == ["a", "b", "e_cuda", "f_cuda"]
    assert tally.counts(gpu_only=False) == (2, 1)
    assert tally.counts(gpu_only=True) == (2, 0)
    assert tally.only_we_fail() == ["b", "e_cuda", "f_cuda"]
    told = tally.table().splitlines()
    assert told[3].split() == ["together", "4", "1"]
    assert told[4:] == [
        "Only samebits fails:", "  b: failed ValueError: no", "  e_cuda: skipped why", "  f_cuda: not run",
    ]  # fmt: skip


def test_a_test_that_hangs_or_dies_is_written_down_and_the_rest_goes_on(tmp_path, monkeypatch):
    good = json.dumps({"state": "passed", "why": "", "seconds": 0.5})
    told = iter([[good], [good, ""], [good, ""]])  # silence; an end too early; the last one
    monkeypatch.setattr(command, "OUTPUT", tmp_path)
    monkeypatch.setattr(command, "answers", lambda *_: iter(next(told)))
    outcomes = command.run("gloo", ["a", "b", "c", "d", "e"], 4)
    assert {name: outcome.state for name, outcome in outcomes.items()} == {
        "a": "passed", "b": "hung", "c": "passed", "d": "died", "e": "passed",
    }  # fmt: skip
