"""What is said when nobody is waited for any more: only what was seen."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from samebits.launcher.diagnosis.stalls import Holdup, Judgement, Standing
from samebits.launcher.request import EntryPoint, LaunchRequest, Output, Placement
from samebits.launcher.supervise.observer import STILL_ALONE_S, Observer
from samebits.launcher.supervise.stalls import Stalls

RANK_1_STALLS = Judgement(Standing.STALLED, Holdup(frozenset({1}), frozenset({0}), 6.0), frozenset({1}))
PIDS = {0: 100, 1: 101}


REQUEST = LaunchRequest(EntryPoint(Path("x.py")), Placement(2, 1, "cpu"), Output(Path("run")))


class Journal(SimpleNamespace):
    """A rank's journal: the number of its newest record, none at 0."""

    def last(self):
        return SimpleNamespace(sequence=self.newest) if self.newest else None

    def waiting(self):
        return self.note


@pytest.mark.parametrize(
    ("before", "after", "pids", "is_said"),
    [
        (7, 8, PIDS, True),
        (7, 7, PIDS, False),  # the wait ended otherwise: it was given up
        (7, 8, {0: 100, 1: 202}, False),  # it was replaced
        (7, 8, {0: 100}, False),  # it ended
        (0, 0, PIDS, True),  # a plain script notes nothing
        (0, 0, {1: 101}, False),  # who waited has ended
    ],
)
def test_only_a_rank_that_moved_is_said_to_have_gone_on(monkeypatch, before, after, pids, is_said):
    monkeypatch.setattr(
        "samebits.launcher.supervise.stalls.finding_of_stall", lambda *_: SimpleNamespace(name="x", first_aid="")
    )
    lines, journal = [], Journal(newest=before)
    stalls = Stalls(
        scenes=SimpleNamespace(
            journals={0: Journal(newest=1), 1: journal}, sentence=lambda *_: "6 s: ...", line_of=lambda _: None
        ),
        cases=SimpleNamespace(add=lambda *_: None),
        console=SimpleNamespace(line=lines.append, block=lambda _: None),
        request=REQUEST,
        kill=None,
        stop=None,
    )
    assert stalls._say(RANK_1_STALLS, {1: SimpleNamespace(doing=None)}, PIDS)
    journal.newest = after
    stalls._say_went_on(pids)
    assert [line.text for line in lines if line.label == "went on"] == ["rank 1, after more than 6 s"] * is_said


@pytest.mark.parametrize("note", [None, "a wait for rank 1"])
def test_ranks_that_wait_for_each_other_do_not_train_alone(note):
    lines = []
    observer = SimpleNamespace(
        _warn_alone_at=STILL_ALONE_S,
        _journals={0: Journal(newest=0, note=note)},
        _saying=SimpleNamespace(line=lines.append),
        _request=REQUEST,
        _pids=[],
        has_begun=True,
        met=False,
        paused=False,
    )
    Observer.warn_alone(observer, STILL_ALONE_S + 1, joined=False)
    assert len(lines) == (note is None)
