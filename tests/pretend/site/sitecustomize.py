"""Where PRETENDED_GPUS says how many, this process has pretended GPUs from the moment it imports torch.

The library must be there before torch, which looks for its CUDA hooks once, while it is imported.
"""

import ctypes
import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path


class _Pretending(MetaPathFinder):
    """Acts before and after a module's own code; the other finders find it."""

    def __init__(self, actions):
        self.actions = actions

    def find_spec(self, fullname, _path, _target=None):
        if fullname not in self.actions:
            return None
        before, after = self.actions.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            before()
            execute(module)
            after(module)

        spec.loader.exec_module = exec_module
        return spec


def _load():
    ctypes.CDLL(os.environ["PRETENDED_GPUS_BUILD"] + "/libdevice.so", mode=ctypes.RTLD_GLOBAL)


def _cuda(torch):
    import pretended_cuda

    pretended_cuda.put_into(torch)


def _nccl(distributed_c10d):
    import pretended_group

    pretended_group.put_into(distributed_c10d)


def _no_gpu(no_gpu):
    import pretended_files

    pretended_files.tell_why(no_gpu)


def _gpus(gpus):
    import pretended_files

    pretended_files.put_into(gpus)


def _torch_versions(torch_versions):
    import pretended_files

    pretended_files.build_for_cuda(torch_versions)


if os.environ.get("PRETENDED_GPUS"):
    sys.path.insert(1, str(Path(__file__).parent))
    nothing = lambda *_: None  # noqa: E731
    sys.meta_path.insert(
        0,
        _Pretending(
            {
                "torch": (_load, _cuda),
                "torch.distributed.distributed_c10d": (nothing, _nccl),
                "samebits.machine.gpus": (nothing, _gpus),
                "samebits.machine.no_gpu": (nothing, _no_gpu),
                "samebits.machine.torch_versions": (nothing, _torch_versions),
            }
        ),
    )
