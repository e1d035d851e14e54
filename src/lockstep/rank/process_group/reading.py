"""What the compiled part reads of torch's objects by itself, without a Python call for each attribute.

It needs no torch headers: torch hands out a table of C functions for DLPack, one of which tells where a tensor's numbers
are. Everything that is not a plain tensor in a plain call is left to Python: see `operands.Buffers`.
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor
from torch.autograd import profiler
from torch.nn import Parameter

from lockstep.machine.torch_private import dispatching
from lockstep.rank.process_group.encoding import OP_CODES
from lockstep.rank.transport.local.native import compiled


@lru_cache
def tensors() -> compiled.Tensors:
    """The reader of tensors; one object per process."""
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    watchers = [(vars(dispatching), "_is_in_torch_dispatch_mode"), (vars(profiler), "_is_profiler_enabled")]
    return compiled.Tensors(exchange, [Tensor, Parameter], watchers, list(OP_CODES.items()))
