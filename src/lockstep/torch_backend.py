"""The backend "lockstep" of torch.distributed, registered by importing this: shared memory for CPU tensors.

    import lockstep.torch_backend
    dist.init_process_group("lockstep")

works where "gloo" does, when all ranks are on one machine: under `lockstep run`, torchrun, `mp.spawn`, with every init
method. A group of one rank is tried first: if a newer torch and lockstep do not fit, asking for the backend raises one
sentence instead of giving a wrong number or a hang. Errors are RuntimeErrors (`dist.DistBackendError`) and also belong
to lockstep's own tree.
"""

from lockstep.rank.process_group.arguments import CollectiveFailed, CollectiveMisused, CollectivePeerLost
from lockstep.rank.process_group.group import register
from lockstep.rank.process_group.self_test import group_problem

__all__ = ["CollectiveFailed", "CollectiveMisused", "CollectivePeerLost"]

register()
group_problem()
