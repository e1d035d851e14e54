"""Options of `lockstep run` that say what happens when a rank is lost, and contradict each other."""

import re
from typing import Any

import pytest

from lockstep.cli.run import recovery_from
from lockstep.errors import UsageError
from lockstep.handover.snapshots import Keeping
from lockstep.launch.request import OnFailure
from lockstep.layout.mesh import Form


def options(**given: Any) -> dict[str, Any]:
    return {
        "on_failure": "replace",
        "max_restarts": None,
        "on_damage": "restart",
        "on_stall": "report",
        "stall_after": None,
        "check_every": None,
        "snapshots": "auto",
        **given,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"on_failure": "stop", "max_restarts": 3}, "--on-failure stop and --max-restarts 3 contradict each other."),
        ({"on_failure": "shrink", "max_restarts": 0}, "--on-failure shrink and --max-restarts 0 contradict"),
        ({"on_failure": "stop", "snapshots": "20steps"}, "is for restarts, and --on-failure stop allows none."),
        ({"on_failure": "stop", "on_stall": "replace"}, "--on-stall replace needs restarts, and --on-failure stop"),
        ({"max_restarts": 0, "on_stall": "replace"}, "--on-stall replace needs restarts, and --max-restarts 0 allows"),
        ({"stall_after": 0.0}, "--stall-after must be a number of seconds above 0, but is 0."),
        ({"stall_after": float("nan")}, "--stall-after must be a number of seconds above 0, but is nan."),
        ({"max_restarts": 0, "snapshots": "5steps"}, "--snapshots 5steps is for restarts, and --max-restarts 0 allows"),
    ],
)
def test_what_is_asked_for_and_excluded_at_once_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        recovery_from(options(**given), Form())


@pytest.mark.parametrize(
    "given",
    [{"on_failure": "stop"}, {"on_failure": "stop", "max_restarts": 0}, {"max_restarts": 0, "snapshots": "off"}],
)
def test_what_agrees_is_taken(given: dict[str, Any]) -> None:
    assert recovery_from(options(**given), Form()).max_restarts == given.get("max_restarts")
    both = recovery_from(options(on_failure="shrink", max_restarts=2, snapshots="20steps"), Form())
    assert (both.on_failure, both.keeping) == (OnFailure.SHRINK, Keeping(steps=20))
