"""Which calls the compiled part carries out by itself: those with plain tensors whose caller waits."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from samebits.rank.transport.local.native import available

if not available():
    pytest.skip("this installation has no compiled part", allow_module_level=True)
if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("this torch hands out no table for DLPack", allow_module_level=True)

from samebits.machine.torch_private import AllgatherOptions
from samebits.rank.process_group.arguments import tensors
from samebits.rank.process_group.exchange import ALL_GATHER, BROADCAST, REDUCE_SCATTER
from samebits.rank.transport.local.native import compiled


@pytest.fixture
def alone():
    """A group of one rank."""
    memory = compiled.Memory.create(compiled.control_bytes(1), reserve=False)
    compiled.Group.announce(memory, 0, 1)
    group = compiled.Group.join(memory, 0, 1, 60.0, compiled.Tuning(), lambda: "", False, [])
    yield group
    group.leave()


def options(kind, **values):
    made = kind()
    made.asyncOp = False
    for name, value in values.items():
        setattr(made, name, value)
    return made


def broadcast(**values):
    return options(dist.BroadcastOptions, **{"rootRank": 0, "rootTensor": 0} | values)


def test_plain_tensors_are_moved(alone):
    given = torch.arange(3000.0)
    assert tensors().move(alone, BROADCAST, None, [given], broadcast())
    assert torch.equal(given, torch.arange(3000.0))
    for kind, opts in (
        (ALL_GATHER, options(AllgatherOptions)),
        (REDUCE_SCATTER, options(dist.ReduceScatterOptions)),
    ):
        result = torch.zeros(3000)
        assert tensors().move(alone, kind, result, given, opts)
        assert torch.equal(result, given)


def test_everything_else_is_left_to_python(alone):
    plain, odd, other = torch.ones(6), torch.ones(3, 2).t(), torch.ones(6, dtype=torch.int32)
    ways = {
        "goes on meanwhile": (BROADCAST, None, [plain], broadcast(asyncOp=True)),
        "another tensor": (BROADCAST, None, [plain], broadcast(rootTensor=1)),
        "no root": (BROADCAST, None, [plain], broadcast(rootRank=-1)),
        "several": (BROADCAST, None, [plain, plain], broadcast()),
        "not contiguous": (BROADCAST, None, [odd], broadcast()),
        "no options": (BROADCAST, None, [plain], 3),
        "output not contiguous": (REDUCE_SCATTER, odd, plain, options(dist.ReduceScatterOptions)),
        "two dtypes": (REDUCE_SCATTER, other, plain, options(dist.ReduceScatterOptions)),
        "two sizes": (REDUCE_SCATTER, plain[:5], plain, options(dist.ReduceScatterOptions)),
        "no output": (REDUCE_SCATTER, None, plain, options(dist.ReduceScatterOptions)),
    }
    assert {why: tensors().move(alone, *call) for why, call in ways.items()} == dict.fromkeys(ways, False)


def test_a_root_that_is_not_there_is_refused(alone):
    with pytest.raises(ValueError, match="no rank 7"):
        tensors().move(alone, BROADCAST, None, [torch.ones(2)], broadcast(rootRank=7))
