"""Whether this torch and the backend samebits fit, found out by trying: a group of one rank, before others wait for it.

torch promises little about process groups that are written in Python. torch 2.15 looked in each group for a part that
such a group lacks, and no run of several ranks began. A version does not show that; so each process that wants the
backend makes a group first, calls what torch offers, compares the numbers and ends it: 3 ms, once. All ranks of a run
have the same torch and come to the same result. What the machine lacks (memory, descriptors) is not a result: the group
itself will report it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from samebits.errors import UsageError
from samebits.machine import torch_private
from samebits.machine.torch_versions import tested_range
from samebits.rank.process_group.group import register, withdraw
from samebits.rank.process_group.watched import NAME
from samebits.rank.transport.local import native
from samebits.rank.transport.local.native import trouble_of
from samebits.rank.transport.local.shared_store import new_store, store_trouble


def group_problem() -> str:
    """Why the backend cannot be used with this torch, in one sentence with the fix; empty if it can.

    Remembered: the first call in a process tries. If it fails, no group of this backend can be made any more, and
    asking for one raises the sentence. Nothing is tried without the compiled part, which is reported elsewhere, or
    while torch.distributed is initialised, when a second default group cannot be made.
    """
    return "" if native.why_not() or dist.is_initialized() else _found()


@functools.cache
def _found() -> str:
    register()
    trouble = store_trouble() or trouble_of(_try)
    if not trouble:
        return ""
    why = UsageError(
        f"The backend samebits does not work with torch {torch.__version__} ({trouble}).",
        f"Use one it was tested with ({tested_range()}), or gloo.",
    )
    withdraw(why)
    return str(why)


def _try() -> None:
    # torch does not keep the store alive.
    shared = new_store()
    # Neither what wraps it in ranks, nor torch's own log.
    begin = inspect.unwrap(dist.init_process_group)
    begin(NAME, store=PrefixStore("self-test", shared), rank=0, world_size=1)
    try:
        for call in (_in_place, _one_into_another, _lists, _through_torchs_core, _objects):
            call(torch.tensor([1.0, -2.0, 3.0], device="cpu"))
    finally:
        dist.destroy_process_group()


def _same(found: Tensor, expected: Tensor) -> None:
    if not torch.equal(found, expected):
        raise RuntimeError(f"{inspect.stack()[1].function} gave {found.tolist()} for {expected.tolist()}")


def _in_place(numbers: Tensor) -> None:
    expected = numbers.clone()
    dist.all_reduce(numbers)
    dist.broadcast(numbers, 0)
    dist.reduce(numbers, 0)
    work: Any = dist.all_reduce(numbers, async_op=True)
    work.wait()
    dist.barrier()
    _same(numbers, expected)


def _one_into_another(numbers: Tensor) -> None:
    for name, older in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    ):
        result = torch.zeros_like(numbers)
        (getattr(dist, name, None) or getattr(dist, older))(result, numbers)
        _same(result, numbers)
    result = torch.zeros_like(numbers)
    dist.all_to_all_single(result, numbers)
    _same(result, numbers)


def _lists(numbers: Tensor) -> None:
    results = [torch.zeros_like(numbers) for _ in range(5)]
    dist.all_gather(results[:1], numbers)
    dist.gather(numbers, results[1:2])
    dist.scatter(results[2], [numbers])
    dist.reduce_scatter(results[3], [numbers])
    dist.all_to_all(results[4:], [numbers])
    for result in results:
        _same(result, numbers)


def _through_torchs_core(numbers: Tensor) -> None:
    """From C++, as DDP, DTensor and FSDP call a group."""
    world = dist.group.WORLD
    assert world is not None
    calls = torch_private.functional_collectives
    _same(calls.wait_tensor(calls.all_reduce(numbers, "sum", world.group_name)), numbers)
    work: Any = dist.all_reduce(numbers.clone(), async_op=True)
    _same(work.get_future().wait()[0], numbers)


def _objects(numbers: Tensor) -> None:
    found: list[Any] = [None]
    dist.all_gather_object(found, numbers.tolist())
    _same(torch.tensor(found[0], device="cpu"), numbers)
