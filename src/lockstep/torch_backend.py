"""`import lockstep.torch_backend`, and torch.distributed knows the backend "lockstep": shared memory for CPU tensors.

    import lockstep.torch_backend
    dist.init_process_group("lockstep")

works where "gloo" does, when all ranks are on one machine: under `lockstep run`, torchrun, `mp.spawn`, with every init
method. A group of one rank is tried first: where a newer torch and lockstep do not fit, asking for the backend is one
sentence, not a number or a hang. Errors are RuntimeErrors (`dist.DistBackendError`) and members of lockstep's own tree at once.
"""

from lockstep.process_group.errors import CollectiveFailed, CollectiveMisused, CollectivePeerLost
from lockstep.process_group.joining import register
from lockstep.process_group.self_test import group_problem

__all__ = ["CollectiveFailed", "CollectiveMisused", "CollectivePeerLost"]

register()
group_problem()
