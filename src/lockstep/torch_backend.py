"""`import lockstep.torch_backend`, and torch.distributed knows the back end "lockstep": shared memory for CPU tensors.

    import lockstep.torch_backend
    dist.init_process_group("lockstep")

works where "gloo" does, when all ranks are on one machine: under `lockstep run`, torchrun, `mp.spawn`, with every init
method. Errors are RuntimeErrors (`dist.DistBackendError`) and members of lockstep's own tree at once.
"""

from lockstep.transport.collective_errors import CollectiveFailed, CollectiveMisused, CollectivePeerLost
from lockstep.transport.joining import register

__all__ = ["CollectiveFailed", "CollectiveMisused", "CollectivePeerLost"]

register()
