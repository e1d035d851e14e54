"""Whether the replicas of a plain script's DistributedDataParallel still hold the same parameters.

DDP compares nothing after it was built: a parameter that one rank left without a gradient, one that was frozen when DDP
looked, or a penalty outside `forward` lets replicas come apart without a word. Each rank writes sums over the bits of its
parameters into the run's folder; the last one on its node to do so compares them. It leaves those of the node's first rank in
the store through which the ranks have met, and the last node to do so compares those. Nobody waits for anybody.
"""

from __future__ import annotations

import functools
import json
import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samebits.machine import torch_private
from samebits.notices import say
from samebits.protocol.case import Case
from samebits.protocol.run_folder import RunFolder, read_json, write_private
from samebits.protocol.saving import BYTES_PER_NS, TENSOR_NS
from samebits.rank.strategy.agreement import bit_sums

FINDING = "replicas-apart"
EVERY = 500
"""Forwards in training between two comparisons."""
MOST_COST = 0.01
"""The part of the time that comparing may take; where it would take more, the end is compared only."""
_MARK = "_samebits_replica"

Sums = Mapping[str, int]


def apart(sums: Mapping[int, Sums]) -> tuple[str, tuple[int, ...]] | None:
    """The sentence on parameters whose sums, by rank and name, differ, and the ranks that differ from the first; None if none does."""
    first = min(sums)
    names = [name for name in sums[first] if any(of_rank.get(name) != sums[first][name] for of_rank in sums.values())]
    if not names:
        return None
    ranks = tuple(rank for rank in sorted(sums) if any(sums[rank].get(name) != sums[first][name] for name in names))
    more = f" (and {len(names) - 1} more of {len(sums[first])} parameters)" if len(names) > 1 else ""
    shown = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return f"{names[0]!r}{more} is not the same on {shown} as on rank {first}", ranks


class Replicas:
    """The DistributedDataParallel models of this process; `ranks` are those of its node, `num_ranks` those of all nodes."""

    def __init__(self, folder: RunFolder, rank: int, ranks: range, num_ranks: int) -> None:
        self._folder, self._rank, self._ranks, self._pid = folder, rank, ranks, os.getpid()
        self._num_ranks = num_ranks
        self._store: Any = None
        self._num_models, self._is_over = 0, False
        self._forwards: dict[int, int] = {}
        self._since: dict[int, float] = {}

    def begins(self, model: nn.Module) -> None:
        """A model was built, as the same one on every rank."""
        number, self._num_models = self._num_models, self._num_models + 1
        self._forwards[number], self._since[number] = 0, time.monotonic()
        # Looked up now: at the end the group may be gone.
        if len(self._ranks) < self._num_ranks:
            with suppress(Exception):
                self._store = torch_private.default_store()
        model.__dict__[_MARK] = (number, id(model))

    def _number_of(self, model: nn.Module) -> int | None:
        """None: a copy, a process that was forked, or after the script's end."""
        number, address = model.__dict__.get(_MARK, (None, 0))
        return number if address == id(model) and not self._is_over and os.getpid() == self._pid else None

    def forward(self, model: nn.Module) -> None:
        """A forward begins: compare if it is time."""
        if not model.training or not torch.is_grad_enabled() or (number := self._number_of(model)) is None:
            return
        count = self._forwards[number] = self._forwards[number] + 1
        if count % EVERY:
            return
        tensors = _tensors(model)
        cost_ns = sum(one.nbytes for one in tensors.values()) // BYTES_PER_NS + TENSOR_NS * len(tensors)
        now = time.monotonic()
        if cost_ns < MOST_COST * 1e9 * (now - self._since[number]):
            self._compare(number, f"step-{count}", tensors, f"after {count} forwards in training")
        self._since[number] = now

    def ends(self, model: nn.Module) -> None:
        """The script has no more use for a model, or is over."""
        number = self._number_of(model)
        if number is not None and self._forwards[number]:
            del model.__dict__[_MARK]
            self._compare(number, "end", _tensors(model), "at its end")

    def over(self) -> None:
        """The script is over; what it leaves behind says nothing."""
        self._is_over = True

    def _compare(self, number: int, when: str, tensors: Mapping[str, Tensor], words: str) -> None:
        """Leave this rank's sums, and compare if all of the node are there."""
        place = self._folder.replicas
        place.mkdir(mode=0o700, exist_ok=True)
        stem = f"{number}-{when}"
        mine = dict(zip(tensors, bit_sums(list(tensors.values())), strict=True))
        write_private(place / f"{stem}-{self._rank}", json.dumps(mine))
        files = {rank: place / f"{stem}-{rank}" for rank in self._ranks}
        # Several ranks may find all files at the same time: one of them compares.
        if not all(file.exists() for file in files.values()) or not _is_first(place / f"{stem}-compared"):
            return
        sums = {rank: read_json(file) for rank, file in files.items()}
        for file in files.values():
            file.unlink(missing_ok=True)
        self._say(number, words, apart(sums))
        if self._store is not None and (of_nodes := self._of_nodes(self._store, stem, sums[self._ranks[0]])):
            self._say(number, words, apart(of_nodes))

    def _of_nodes(self, store: Any, stem: str, mine: Sums) -> dict[int, Sums]:
        """The sums of the first rank of each node, if all are there."""
        key = f"samebits replicas {stem}"
        # The store's `add` is atomic: the last node to come finds the sums of all others.
        store.set(f"{key} {store.add(f'{key} nodes', 1)}", json.dumps([self._ranks[0], mine]))
        if store.add(f"{key} ranks", len(self._ranks)) < self._num_ranks:
            return {}
        num_nodes = store.add(f"{key} nodes", 0)
        return dict(json.loads(store.get(f"{key} {number}")) for number in range(1, num_nodes + 1))

    def _say(self, number: int, words: str, found: tuple[str, tuple[int, ...]] | None) -> None:
        if found is not None and _is_first(self._folder.replicas / f"{number}-said"):
            said = f"replicas of a DistributedDataParallel model have come apart: {words}, {found[0]}"
            say(
                f"{said}. A script that averages them now and then has them apart in between: average once more at its end."
            )
            Case(FINDING, said, found[1]).add_to(self._folder.findings)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that DDP keeps equal, by name."""
    ignored = getattr(model, "parameters_to_ignore", ())
    inner: Any = model.module
    return {
        name: parameter.detach()
        for name, parameter in inner.named_parameters()
        if name not in ignored and parameter.layout is torch.strided and not parameter.is_meta and parameter.numel()
    }


def _is_first(path: Path) -> bool:
    """Whether nobody was here before."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    return False


def watch(ddp: Any, folder: str, rank: int, ranks: range, num_ranks: int) -> Callable[[bool], None]:
    """Watch all models of the class `ddp` from now on.

    Returns:
        To be called when the script has ended: with whether it ended by itself, and not by an exception.
    """
    replicas = Replicas(RunFolder(Path(folder)), rank, ranks, num_ranks)
    alive: list[weakref.ref[Any]] = []
    forward = ddp.forward

    # [Note: models are seen in `__new__`]
    # Warnings that `__init__` raises name its caller, which must be the script's line and not a wrapper of ours.
    def begins(kind: Any, *args: Any, **kwargs: Any) -> Any:
        new = object.__new__(kind)
        # A copy is made without arguments.
        if args or kwargs:
            replicas.begins(new)
            alive[:] = [*(one for one in alive if one() is not None), weakref.ref(new)]
        return new

    @functools.wraps(forward)
    def forwards(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _quietly(replicas.forward, self)
        return forward(self, *args, **kwargs)

    def over(is_by_itself: bool) -> None:
        for one in alive if is_by_itself else ():
            if (model := one()) is not None:
                _quietly(replicas.ends, model)
        replicas.over()

    ddp.__new__, ddp.forward, ddp.__del__ = staticmethod(begins), forwards, lambda self: _quietly(replicas.ends, self)
    return over


def _quietly(look: Callable[[nn.Module], None], model: nn.Module) -> None:
    """What only looks must not end a script: a full disk, a device that is broken."""
    with suppress(Exception):
        look(model)
