"""Functions of `accelerate.utils` that exchange: a lane that calls one is refused on one process too, where they do nothing."""

from __future__ import annotations

import sys
from typing import Any

from accelerate.utils import operations

from samebits.rank.process_group.asked import QUESTIONS

CALLS = {
    **{name: name for name in ("gather", "gather_object", "broadcast", "broadcast_object_list")},
    "_reduce_across_processes": "reduce",
}
"""Functions that ask for the state of the processes before they exchange, and their public names."""
_STATE = operations.PartialState


def _state() -> Any:
    if (call := CALLS.get(sys._getframe(1).f_code.co_name)) is not None:
        QUESTIONS.before_call(call)
    return _STATE()


def listen() -> None:
    """Ask from now on; a second call changes nothing."""
    operations.PartialState = _state
