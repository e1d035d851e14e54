"""The backend "samebits" of torch.distributed, registered by importing this: shared memory for CPU tensors.

    import samebits.torch_backend
    dist.init_process_group("samebits")

works where "gloo" does, when all ranks are on one machine: under `samebits run`, torchrun, `mp.spawn`, with every init
method. A group of one rank is tried first: if a newer torch and samebits do not fit, asking for the backend raises one
sentence instead of giving a wrong number or a hang. Errors are RuntimeErrors (`dist.DistBackendError`) and also belong
to samebits's own tree.
"""

from samebits.rank.process_group.arguments import CollectiveFailed, CollectiveMisused, CollectivePeerLost
from samebits.rank.process_group.group import register
from samebits.rank.process_group.self_test import group_problem

__all__ = ["CollectiveFailed", "CollectiveMisused", "CollectivePeerLost"]

register()
group_problem()
