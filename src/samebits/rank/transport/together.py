"""Each rank does its part, then all report how it went, and all raise the first rank's error.

A rank whose part failed must not leave the others waiting in an exchange, and they must not continue without it:

    together = Together(transport, "run.save_state", where())
    contents = together.do(lambda: collect(...))   # None on a rank where something failed
    everyone = together.agree(digest(contents))    # raises on every rank, or returns each rank's report
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from samebits.errors import EnvironmentFailure, InternalError, PeerLost, SamebitsError, UsageError
from samebits.rank.transport.contract import Transport

Result = TypeVar("Result")


class Together:
    """What has gone wrong on this rank so far, until the ranks agree.

    Args:
        operation: what the ranks are doing, for `Transport.exchange`.
    """

    def __init__(self, transport: Transport, operation: str, where: str) -> None:
        self._transport, self._operation, self._where = transport, operation, where
        self._trouble: SamebitsError | None = None

    def do(self, part: Callable[[], Result]) -> Result | None:
        """Return the result of this rank's part; None when it fails, or an earlier one did."""
        if self._trouble is None:
            try:
                return part()
            except PeerLost:
                raise
            except SamebitsError as error:
                self._trouble = error
        return None

    def refuse(self, trouble: SamebitsError | None) -> None:
        """Record `trouble`, if any, as this rank's; an earlier one stays."""
        self._trouble = self._trouble or trouble

    def agree(self, report: Any = None) -> list[Any]:
        """Return each rank's report (JSON), in rank order. Collective: call it on every rank.

        Raises:
            SamebitsError: on every rank, the trouble of the first rank that has one.
        """
        everyone = self._transport.all_gather_object([encode(self._trouble), report], self._operation, self._where)
        for trouble, _ in everyone:
            if trouble is not None:
                raise decode(trouble) from self._trouble
        return [value for _, value in everyone]


def encode(trouble: SamebitsError | None) -> list[str] | None:
    """An error as JSON: its class name and its text."""
    if isinstance(trouble, UsageError):
        return [UsageError.__name__, trouble.problem, trouble.fix]
    if trouble is not None:
        return [
            (EnvironmentFailure if isinstance(trouble, EnvironmentFailure) else InternalError).__name__,
            str(trouble),
        ]
    return None


def decode(encoded: list[str]) -> SamebitsError:
    kind, *words = encoded
    return {one.__name__: one for one in (UsageError, EnvironmentFailure, InternalError)}[kind](*words)
