"""How many files the first node's link has open, and whether that many may be: pure arithmetic over what the code opens.

Without them it would wait for a connection that it cannot accept, without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.errors import UsageError

LINK_CONNECTIONS = 2
"""Of a node's link to the store: one to write the log, one that waits for its next entry."""
FILES_PER_CONNECTION = 3
"""For each connection of another node: behind TLS, to the store, and the store's own end."""
FILES_PER_OWN_CONNECTION = 5
"""For each of this node: the two ends of the tunnel too."""
FILES_OF_ITS_OWN = 34
"""Listening sockets, event loops, the pulse, what torch and Python have open: 30 were counted (torch 2.13.0), and a few more come and go."""


def for_another(ranks: int) -> int:
    """For another node with so many ranks; one is its pulse."""
    return FILES_PER_CONNECTION * (LINK_CONNECTIONS + ranks) + 1


def in_all(ranks: Sequence[int]) -> int:
    """For nodes with so many ranks, the first one first."""
    own = FILES_OF_ITS_OWN + FILES_PER_OWN_CONNECTION * (LINK_CONNECTIONS + ranks[0])
    return own + sum(map(for_another, ranks[1:]))


def check_files(ranks: Sequence[int], most: int) -> None:
    """Raise `UsageError` where the first node may not open what these nodes need.

    Args:
        ranks: of each node, the first one first.
        most: how many files a process may open there; -1 for any number.
    """
    needed = in_all(ranks)
    if 0 <= most < needed:
        raise UsageError(
            f"Node 0 needs {needed} open files for {len(ranks)} nodes with {sum(ranks)} ranks, and a process may have {most} there.",
            f"Raise the limit on node 0 to {needed} or more: `ulimit -n`, in limits.conf, or where its job is started.",
        )
