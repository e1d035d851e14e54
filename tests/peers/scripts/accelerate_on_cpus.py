"""Accelerate's test scripts for several GPUs, on CPUs: `accelerate_on_cpus.py NAME` of accelerate.test_utils.scripts.

Accelerate allows two things on GPUs only that torch does on CPUs too, so under torchrun these scripts hang or fail:
`join_uneven_inputs` has no effect, and an FSDP plugin is ignored. Both are switched on; the scripts stay as they are.
"""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

begin, join = Accelerator.__init__, Accelerator.join_uneven_inputs


def begin_with_fsdp(self: Accelerator, *args: Any, fsdp_plugin: Any = None, **more: Any) -> None:
    begin(self, *args, fsdp_plugin=fsdp_plugin, **more)
    if fsdp_plugin is not None:
        self.state.distributed_type, self.state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        self.state.device = torch.device("cpu")  # FSDP does not know cpu:0


@contextmanager
def join_on_cpus(self: Accelerator, *args: Any, **more: Any) -> Iterator[None]:
    on_cpus = self.distributed_type is DistributedType.MULTI_CPU
    with mock.patch.object(Accelerator, "multi_device", on_cpus), join(self, *args, **more):
        yield


Accelerator.__init__, Accelerator.join_uneven_inputs = begin_with_fsdp, join_on_cpus
runpy.run_module(f"accelerate.test_utils.scripts.{sys.argv[1]}", run_name="__main__", alter_sys=True)
