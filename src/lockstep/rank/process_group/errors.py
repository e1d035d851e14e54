"""What can go wrong in a collective, as exceptions for both kinds of readers.

Code for torch.distributed catches RuntimeError or `dist.DistBackendError`; lockstep's launcher tells a user's mistake
from a lost peer by its own tree. Each class here is both.
"""

from __future__ import annotations

import torch.distributed as dist

from lockstep.errors import PeerLost, UsageError, WorldError
from lockstep.rank.transport.local.troubles import ABORTED, DISAGREEMENT, LOST, SAME_CALLS

SAME_AMOUNTS = "Receive what is sent: as many elements, in the same shape and dtype."


class CollectiveMisused(UsageError, dist.DistBackendError):  # noqa: N818 - named like its bases
    """A call that cannot be right: unsupported tensors, ranks that call different operations, a group after its end."""


class CollectivePeerLost(PeerLost, dist.DistBackendError):
    """Another rank ended, left the group or gave up while this one waits for it."""


class CollectiveFailed(WorldError, dist.DistBackendError):  # noqa: N818
    """A rank did not come in time, or there is too little memory."""


def error_for(trouble: int, text: str) -> Exception:
    """The exception for a trouble that the compiled part reports."""
    if trouble == DISAGREEMENT:
        error = CollectiveMisused(text, SAME_CALLS if ": The ranks " in text else SAME_AMOUNTS)
        error.finding = "mismatched-collective"
        return error
    return CollectivePeerLost(text) if trouble in {LOST, ABORTED} else CollectiveFailed(text)
