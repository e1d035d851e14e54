"""Options of `samebits run` that say what happens when a rank is lost, and contradict each other."""

import re
from typing import Any

import pytest

from samebits.cli.launch_request import RunOptions, recovery_from
from samebits.errors import UsageError
from samebits.launcher.choices import Recover
from samebits.protocol.layout.mesh import Form
from samebits.protocol.saving import Keeping


def options(**given: Any) -> RunOptions:
    return RunOptions("train.py", **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"recover": "off", "max_restarts": 3}, "--recover off and --max-restarts 3 contradict each other."),
        ({"recover": "off", "shrink": True}, "--recover off and --shrink contradict each other."),
        ({"shrink": True, "max_restarts": 0}, "--shrink and --max-restarts 0 contradict"),
        ({"recover": "off", "snapshots": "20steps"}, "is for restarts, and --recover off allows none."),
        ({"recover": "off", "on_stall": "replace"}, "--on-stall replace needs restarts, and --recover off"),
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
    [{"recover": "off"}, {"recover": "off", "max_restarts": 0}, {"max_restarts": 0, "snapshots": "off"}],
)
def test_what_agrees_is_taken(given: dict[str, Any]) -> None:
    assert recovery_from(options(**given), Form()).max_restarts == given.get("max_restarts")
    both = recovery_from(options(shrink=True, max_restarts=2, snapshots="20steps"), Form())
    assert (both.recover, both.shrinks, both.keeping) == (Recover.AUTO, True, Keeping(steps=20))
