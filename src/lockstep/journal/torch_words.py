"""What torch's own errors mean, told by their words: Gloo, NCCL and CUDA raise the same class for everything."""

from __future__ import annotations

import re

_PEER = re.compile(
    r"gloo/transport|Connection (closed|reset) by (remote )?peer|Broken pipe.*gloo|NCCL.*(abort|remote)", re.IGNORECASE
)
_OWN = re.compile(r"(CUDA|HIP)( driver)? error|out of memory|No space left on device", re.IGNORECASE)


def is_of_a_peer(error: BaseException) -> bool:
    """Whether a connection to another rank ended. What this rank's own device or memory did is never that."""
    text = str(error)
    return isinstance(error, RuntimeError) and _PEER.search(text) is not None and _OWN.search(text) is None
