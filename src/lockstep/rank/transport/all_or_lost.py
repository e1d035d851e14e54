"""What one rank loses, all of them lose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from lockstep.errors import PeerLost
from lockstep.protocol.journal.torch_words import is_of_a_peer

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def all_or_lost(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[..., Result]:
    """What one rank loses, all of them lose: a `PeerLost` gives the transport up; so does a dead connection."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        transport = self.transport
        try:
            transport.loss.check()
            return method(self, *args, **named)
        except PeerLost as lost:
            raise transport.lose(lost) from None
        except RuntimeError as error:
            if is_of_a_peer(error):
                raise transport.lose(transport.explain(error)) from None
            raise

    return guarded
