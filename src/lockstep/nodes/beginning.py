"""How a node gets its side of the star."""

from __future__ import annotations

import socket
from functools import partial

from lockstep.nodes.address import Choice
from lockstep.nodes.hello import address_bytes
from lockstep.nodes.host_star import HostStar
from lockstep.nodes.key import Key
from lockstep.nodes.munge import seal
from lockstep.nodes.node_star import Calling, NodeStar
from lockstep.nodes.star import Star


def begin_star(
    node: str, chosen: Choice, listener: socket.socket | None, key: Key | None, *, job: str, patience_s: float
) -> Star:
    """Node 0's where there is a listening socket, which is taken over; else one that begins to call node 0.

    Args:
        node: this node.
        chosen: its address, and node 0's.
        listener: node 0's.
        key: the run's; None: node 0 is asked for it.
        job: SLURM's, if the key is sealed for it.
        patience_s: how long node 0 may not listen yet.
    """
    place = chosen.gate
    if listener is None:
        return NodeStar(node, Calling(place, key, job, patience_s))
    if key is None:
        raise ValueError("node 0 has the key")
    meant = {address_bytes(address, place.port) for address in chosen.meant}
    return HostStar(node, listener, key, meant, partial(seal, key, job) if job else None)
