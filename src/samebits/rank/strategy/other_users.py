"""Memory with other users: tensors that something besides the model reads or writes, so they must stay where they are.

A script may have taken views of its parameters before `run.prepare` (`p.data` for an average, `p.detach().numpy()`, a
flat tensor that the parameters were cut from), or have shared them with another process. Such a view is silently cut
off when the parameter gets other memory.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.machine.torch_private import storage_uses
from samebits.rank.transport.channel import is_dense
from samebits.rank.transport.contract import Transport

Models = Sequence[tuple[str, nn.Module]]
"""(label, module) pairs."""


def agree_who_stays(
    models: Models, transport: Transport, absent: Container[int] = (), our_memory: Container[int] = ()
) -> frozenset[int]:
    """Identities of the parameters and buffers that must keep their memory. Collective: call it on every rank.

    One rank where they must is enough.

    Args:
        models: the same on every rank.
        transport: the ranks that hold the same parameters and buffers.
        absent: identities of those that other ranks hold.
        our_memory: addresses of the memory that samebits made.

    Raises:
        UsageError: on every rank, for a parameter that can neither stay nor move.
    """
    named = [one for one in named_once(models) if id(one[1]) not in absent]
    tensors = [tensor for _, tensor in named]
    elsewhere = used_elsewhere(tensors, our_memory)
    shared = [_mapped_file(tensor) if is_shared(tensor) else "" for tensor in tensors]
    reports = transport.all_gather_object(["".join("01"[one] for one in elsewhere), shared], "memory of the model")
    stays = [any(flag == "1" for flag in flags) for flags in zip(*(one[0] for one in reports), strict=True)]
    for (name, tensor), stay, files in zip(named, stays, zip(*(one[1] for one in reports), strict=True), strict=True):
        owners = Counter(filter(None, files))
        if owners and max(owners.values()) > 1:
            raise UsageError(
                f"{name} is in memory that several ranks share, as after mp.spawn(train, args=(model,)), so each "
                "rank's update would change all of them.",
                "Build the model inside the function that the ranks run.",
            )
        if stay and isinstance(tensor, nn.Parameter) and not is_dense(tensor):
            raise _between(name)
    return frozenset(id(tensor) for tensor, stay in zip(tensors, stays, strict=True) if stay)


def _between(name: str) -> UsageError:
    return UsageError(
        f"{name} is a strided view of memory that something else uses too, so it can be neither moved nor compared.",
        "Give it memory of its own before run.prepare: `p.data = p.data.clone()`.",
    )


def named_once(models: Models) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer, each once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for label, model in models:
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            found.setdefault(id(tensor), (f"{label}.{name}" if len(models) > 1 else name, tensor))
    return list(found.values())


def _mapped_file(tensor: Tensor) -> str:
    """Device and inode of the file that holds a shared tensor, equal in all processes; empty if unknown."""
    address = tensor.data_ptr()
    try:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, _, device, inode, *_ = line.split()
            start, end = (int(word, 16) for word in span.split("-"))
            if start <= address < end:
                return f"{device} {inode}"
    except OSError:
        pass
    return ""


def with_other_users(named: Iterable[tuple[str, Tensor]], our_memory: Container[int] = ()) -> set[str]:
    """The names of those tensors whose memory has other users; `our_memory` as below."""
    listed = list(named)
    return {
        name
        for (name, _), elsewhere in zip(
            listed, used_elsewhere([tensor for _, tensor in listed], our_memory), strict=True
        )
        if elsewhere
    }


def refuse_other_users(named: Iterable[tuple[str, Tensor]], fix: str, our_memory: Container[int] = ()) -> None:
    """Raise `UsageError` for a tensor that has to move, but whose memory has other users.

    Args:
        named: tensors by name.
        fix: what to do, and why they cannot stay.
        our_memory: addresses of the memory that samebits made.
    """
    listed = list(named)
    refuse_named([name for name, _ in listed], with_other_users(listed, our_memory), fix)


def refuse_named(names: Iterable[str], used: Container[str], fix: str) -> None:
    """Raise `UsageError` for the first of the tensors that have to move but are `used`."""
    for name in names:
        if name in used:
            raise UsageError(
                f"{name} is in memory that something else uses too: a view that was taken before (p.data, p.detach(), "
                f".numpy(), from_numpy()), a graph that is still alive, or another process (share_memory()).",
                fix,
            )


def is_shared(tensor: Tensor) -> bool:
    """Whether other processes may see the tensor's memory. CUDA tensors do not count: torch says so of all of them."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def used_elsewhere(tensors: Sequence[Tensor], our_memory: Container[int] = ()) -> list[bool]:
    """For each dense or strided tensor, whether its memory has other users.

    It has when tensors other than `tensors` (even in a NumPy array, or in a graph that is still alive) use the storage,
    when the storage is shared with other processes, and when torch did not make it (`torch.from_numpy`, a mapped file),
    so its users are unknown; unless its address is in `our_memory`. About 2 µs per tensor.
    """
    storages = [_storage(tensor) for tensor in tensors]
    ours = Counter(storage._cdata for storage in storages if storage is not None)  # noqa: SLF001

    def has_others(storage: torch.UntypedStorage | None) -> bool:
        return storage is not None and _num_users(storage) > ours[storage._cdata]  # noqa: SLF001

    if any(map(has_others, storages)):
        # A view in an unreachable cycle is no user.
        gc.collect()
    return [
        has_others(storage) or (storage is not None and tensor.data_ptr() not in our_memory and _is_foreign(storage))
        for tensor, storage in zip(tensors, storages, strict=True)
    ]


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage()


def _is_foreign(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu" and (storage.is_shared() or not storage.resizable())


def _num_users(storage: torch.UntypedStorage) -> int:
    """The number of tensors that use a storage."""
    return int(storage_uses(storage._cdata)) - _ASKING  # noqa: SLF001


_ASKING = 0
_ASKING = _num_users((_LONE := torch.empty(1, device="cpu")).untyped_storage()) - 1
"""What torch counts for the storage object that asks: the excess over 1 for a tensor that nothing shares."""
