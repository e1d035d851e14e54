"""A script's own exchanges inside a lane: refused at the call, on one rank too.

Ranks carry different numbers of lanes, so a collective in a lane may wait for ever; and what it returns is made of the
lanes that happen to be computed at the same time, so the lane's value would depend on the number of ranks. One rank
mostly has no group. There a script asks for one and goes on without: what is noticed is the question, where a collective
follows if the answer is yes.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from types import FrameType

from samebits.errors import UsageError
from samebits.machine.torch_private import graph_task_id
from samebits.rank.caller import INTEGRATIONS, PACKAGE, TORCH, short, where
from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.process_group.asked import QUESTIONS, collectives, listen
from samebits.rank.process_group.group import unwatched_exchanges

_SYNCHRONISED_NORM = f"{TORCH}nn/modules/_functions.py"
_DEPTH = 4
"""Functions between the question whether there is a group and the collective: torch's examples have two."""
_OF_GROUPS = ("world", "rank", "group", "dist", "initialized", "available")
"""Parts of names in conditions about the group: on several ranks they let the collective through."""
_RETURNS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS")


class LaneExchanges:
    """Refuses collectives of torch.distributed wherever the result would be part of a lane.

    Args:
        position: where the script is; construct it in the thread that goes through the lanes.
    """

    def __init__(self, position: LoopPosition) -> None:
        self._position, self._thread = position, threading.get_ident()
        self._before: dict[int, int | None] = {}
        self._may_exchange = False
        listen()
        QUESTIONS.before_call, QUESTIONS.before_answer = self.refuse, self._refuse_what_follows

    def close(self) -> None:
        """Refuse nothing any more."""
        self._position = LoopPosition()

    def enter_lane(self) -> None:
        """A lane begins, or a loss over the batch."""
        self._before, self._may_exchange = unwatched_exchanges(), False

    def leave_lane(self) -> None:
        """It is over. What a group of torch's back ends counts by itself shows calls before which nobody is asked: of the
        group's own methods, functional collectives, operations of C++.

        Raises:
            UsageError: when one of them has exchanged something.
        """
        now = self._before if self._may_exchange else self._before and unwatched_exchanges()
        if now is not self._before and any(now.get(group, number) != number for group, number in self._before.items()):
            raise refused("A call of a process group", where())

    def _is_in_lane(self) -> bool:
        position = self._position
        if position.region is not Region.LANE and not position.in_loss_over_batch:
            return False
        # Autograd has threads of its own for GPUs; other threads compute no lanes.
        return threading.get_ident() == self._thread or graph_task_id() != -1

    def refuse(self, call: str) -> None:
        """Call before the collective `call` begins.

        Raises:
            UsageError: inside a lane, or in a loss over the batch.
        """
        # What is not refused here may count: another thread's, as of a checkpoint that is being written, or a library's.
        self._may_exchange = True
        if not self._is_in_lane():
            return
        line = "a hook of a backward"
        for frame in _outwards(sys._getframe(1)):  # noqa: SLF001 - as inspect.currentframe
            file, library = frame.f_code.co_filename, str(frame.f_globals.get("__name__")).partition(".")[0]
            # It works on the statistics of the lane by itself, and its exchange belongs to the layer.
            if file == _SYNCHRONISED_NORM:
                return
            if file.startswith((TORCH, f"{PACKAGE}/process_group/", f"{PACKAGE}/checks/")):
                continue
            # The integrations decide what their libraries may exchange: TRL's numbers for the log, say.
            if file.startswith(f"{INTEGRATIONS}/") or library == "trl":
                return
            if library == "accelerate":
                # Its processes have equally many lanes, and a barrier gives no value.
                if call == "barrier":
                    return
                continue
            line = short(file, frame.f_lineno)
            break
        raise refused(call, line)

    def _refuse_what_follows(self) -> None:
        """Somebody asks whether there is a group, and there is none. Raises `UsageError` where a collective depends on it."""
        if not self._is_in_lane():
            return
        # Frames: this method, `is_initialized`, who asks.
        asks = sys._getframe(2)  # noqa: SLF001
        if asks.f_code.co_filename.startswith((TORCH, f"{PACKAGE}/")):
            return
        for frame in islice(_outwards(asks), _DEPTH):
            if call := _collective_behind(frame):
                raise refused(call, short(frame.f_code.co_filename, frame.f_lineno))


def refused(call: str, line: str) -> UsageError:
    """The error for an exchange inside a lane."""
    return UsageError(
        f"{call} exchanges with other ranks, and was called inside a lane ({line}). Ranks carry different numbers of lanes, so "
        "some would wait forever, and what a lane computes would depend on the number of ranks.",
        "Compute a lane from its own samples. Divide by counts of the whole batch with step.backward(loss_of, counts=), compare its "
        "samples with over_batch=, and add up what lanes made after them (run.lane_sum).",
    )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _collective_behind(frame: FrameType) -> str:
    """The name of a collective that a frame calls or not by the answer that it waits for; empty if there is none.

    `if there_is_a_group(): all_reduce(x)` has it in the branch, `if not there_is_a_group(): return x` behind one.
    """
    names = collectives() & {*frame.f_code.co_names}
    if not names:
        return ""
    rest = [one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti]
    place, jump = next(((place, one) for place, one in enumerate(rest) if "JUMP" in one.opname), (0, None))
    # Without a condition it is the end of a loop's body.
    if jump is None or "_IF_" not in jump.opname:
        return ""
    branch = [one for one in rest[place + 1 :] if one.offset < jump.argval]
    if branch and branch[-1].opname in _RETURNS:
        branch = rest[place + 1 :]
    behind = next((place for place, one in enumerate(branch) if one.argval in names), None)
    return "" if behind is None or _asks_more(branch[: behind + 1]) else str(branch[behind].argval)


def _asks_more(branch: Sequence[dis.Instruction]) -> bool:
    """Whether something that does not concern the group decides too whether the last instruction is reached: a script's own switch."""
    words: list[str] = []
    for one in branch[:-1]:
        words.append(str(one.argval).lower())
        if "JUMP" in one.opname:
            skips = "_IF_" in one.opname and isinstance(one.argval, int) and one.argval > branch[-1].offset
            if skips and not any(part in word for word in words for part in _OF_GROUPS):
                return True
            words.clear()
    return False
