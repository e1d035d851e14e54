"""What `torch.distributed` takes for NCCL."""

import datetime as dt
import importlib.util
import os

import torch


class _IsNccl(type):
    def __instancecheck__(cls, value):
        return isinstance(value, torch._C._distributed_c10d.Backend) and value.name() == "nccl"


class ProcessGroupNCCL(metaclass=_IsNccl):
    """Stands where torch looks for its class; what it makes is C++."""

    class Options:
        """Attributes are set and not read."""

    def __new__(cls, store, rank, size, options):
        gloo = torch._C._distributed_c10d.ProcessGroupGloo(store, rank, size, options._timeout)
        return _library().over(store, rank, size, gloo)


def _library():
    path = os.environ["PRETENDED_GPUS_BUILD"] + "/pretended_nccl.so"
    spec = importlib.util.spec_from_file_location("pretended_nccl", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put_into(distributed_c10d):
    """Give torch a back end of the name "nccl"."""
    distributed_c10d.ProcessGroupNCCL = ProcessGroupNCCL
    distributed_c10d._NCCL_AVAILABLE = True
    distributed_c10d.default_pg_nccl_timeout = dt.timedelta(minutes=10)
