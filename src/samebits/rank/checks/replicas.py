"""The check that ranks still hold the same bits, and who is wrong where they don't: damaged memory, or a script.

    every N steps, in a pass       -> report_bits, receive_bits  one number per rank rides on the frame of the pass;
                                                                 of statistics of BatchNorm and their like, in every pass
    a new epoch, a state, the end  -> compare                    one frame of its own
    the numbers differ             -> every tensor's hash, and the majority decides who is wrong

Between a step's lanes the script does as it likes: an `optimizer.step()` behind `if run.is_main`, or a learning rate
that depends on the rank, lets models drift apart without an error from torch. To the check that looks the same as
damage; the launcher starts all ranks again, and what comes back at the same step is the script's doing
(`launcher.recovery`). See docs/design/lanes.md#silent-damage.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from samebits.errors import PeerLost, RanksDiffer
from samebits.protocol.saving import chosen_steps, parse_checks
from samebits.rank.caller import where
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.agreement import bit_sums, packed, tensor_hash


@dataclass(frozen=True)
class Damage:
    """The first tensor that differs between ranks, and who is wrong."""

    tensor: str
    ranks: tuple[int, ...]
    """Those that differ from the majority; where there is none, all that were compared."""
    has_majority: bool

    @property
    def what(self) -> str:
        """The rest of a sentence that begins with `rank` and the first of `ranks`."""
        holds = f"{self._others}no longer hold{'s' if len(self.ranks) == 1 else ''} the same bits"
        if self.has_majority:
            return f"{holds} as the other ranks in {self.tensor!r}"
        doubt = "so one of the two is wrong" if len(self.ranks) == 2 else "and most of them agree on none"
        return f"{holds} in {self.tensor!r}, {doubt}"

    @property
    def _others(self) -> str:
        others = [str(rank) for rank in self.ranks[1:]]
        if len(others) <= 1:
            return f"and rank {others[0]} " if others else ""
        return f"and {len(others)} more (ranks {', '.join(others[:-1])} and {others[-1]}) "


def first_damage(gathered: Sequence[Mapping[str, str]], part_of: Sequence[int] = ()) -> Damage | None:
    """The first tensor whose hash differs between ranks; None when none does.

    The tensor is the first one in the order of the first rank that has it; the decision is the same for any order of the
    ranks, up to their numbers.

    Args:
        gathered: for each rank, the hashes of its tensors by name.
        part_of: for each rank, which part of the model it holds; by default all hold the same.
    """
    part_of = part_of or [0] * len(gathered)
    for part in sorted(set(part_of)):
        ranks = [rank for rank, its in enumerate(part_of) if its == part]
        names = dict.fromkeys(name for rank in ranks for name in gathered[rank])
        for name in names:
            count = Counter(gathered[rank].get(name, "") for rank in ranks)
            right, most = count.most_common(1)[0]
            if len(count) > 1:
                has_majority = 2 * most > len(ranks)
                wrong = tuple(rank for rank in ranks if not has_majority or gathered[rank].get(name, "") != right)
                return Damage(name, wrong, has_majority)
    return None


BITS = "bits"
"""The row of a pass's frame in which ranks report theirs."""


def begin_checks(run: RunState) -> None:
    """Choose, from what all ranks hold, after how many steps they compare; at the beginning of an epoch."""
    comparison = run.loop_state.comparison
    comparison.every = 0
    if run.config.mesh.replicas == 1 or run.config.purpose.records or comparison.requested == 0:
        return
    tensors = [tensor for _, tensor in run.components.strategy.tensors()]
    if not tensors:
        return
    # Optimizers have their states after the first step only, and a resumed start must choose as the first one did.
    updated = [one for one in tensors if one.requires_grad] * (2 if _torchs_optimizers(run) else 0)
    num_bytes = sum(one.numel() * one.element_size() for one in (*tensors, *updated))
    comparison.every = comparison.requested or chosen_steps(num_bytes, len(updated))


def nothing_to_check(run: RunState) -> str:
    """Why --check-every has no effect, in a sentence; empty when it has, or was not given."""
    settings, mesh = run.config.environment.settings, run.config.mesh
    requested = settings.check_every if settings is not None else ""
    if not requested or not parse_checks(requested) or run.config.mesh.replicas > 1:
        return ""
    whole = "there is one rank" if mesh.stages == 1 else "each rank holds another part of the model"
    return f"--check-every {requested} has nothing to compare: {whole}."


def report_bits(run: RunState, *, is_first: bool) -> list[Any]:
    """What this rank reports to the others about its bits in this pass, whose lanes are over; `is_first` of its step. Empty: nothing.

    The sums of buffers that move belong to every pass: the others add to theirs what this rank makes of a damaged one.
    """
    every = run.loop_state.comparison.every
    if not every:
        return []
    moving = run.components.strategy.checksums(only_moving=True)
    whole = bits_held(run) if is_first and run.components.step_timer.step % every == 0 else ""
    return [moving, whole] if moving or whole else []


def receive_bits(run: RunState, gathered: Sequence[Any]) -> None:
    """Compare what the ranks reported in `report_bits`, if all did. Collective: call it on every rank.

    Raises:
        RanksDiffer: on the rank that is wrong; on the others `PeerLost`.
    """
    if len(gathered) == run.components.transport.world_size and None not in gathered:
        _compare(run, gathered, run.components.step_timer.step - 1, is_whole=all(whole for _, whole in gathered))


def compare(run: RunState, gathered: list[Any]) -> None:
    """Compare what each rank's `bits_held` was. Collective: call it on every rank, between steps.

    Raises:
        RanksDiffer: on the rank that is wrong; on the others `PeerLost`.
    """
    _compare(run, gathered, run.components.step_timer.step, is_whole=True)


def bits_held(run: RunState) -> str:
    """16 digits from the bits of all that this rank holds and its replicas too; empty where nobody does."""
    if run.config.mesh.replicas == 1:
        return ""
    states = bit_sums(packed([tensor.detach() for _, tensor in _states(run, {})]))
    return hashlib.blake2b(repr([run.components.strategy.checksums(), states]).encode(), digest_size=8).hexdigest()


def compared(run: RunState) -> set[int]:
    """Identities of the tensors of which `compare` has just made sure that every rank holds the same bits."""
    if run.config.mesh.stages > 1 or run.config.purpose.records or run.components.transport.world_size == 1:
        return set()
    return {id(tensor) for _, tensor in (*run.components.strategy.tensors(), *_states(run, {}))}


def _compare(run: RunState, gathered: Sequence[Any], step: int, *, is_whole: bool) -> None:
    mesh, comparison = run.config.mesh, run.loop_state.comparison
    if run.config.purpose.records:
        # `samebits verify` compares more, and names the step.
        return
    if any(one != gathered[mesh.peers(part)[0]] for part, one in zip(mesh.part_of(), gathered, strict=True)):
        _blame(run)
    elif is_whole:
        comparison.agreed = step


def _blame(run: RunState) -> None:
    """Find who is wrong; the padding between tensors, which nobody reads, is not."""
    rank, strategy = run.components.transport.rank, run.components.strategy
    tensors = dict(strategy.tensors())
    names = {id(tensor): name for name, tensor in tensors.items()}
    hashes = {name: tensor_hash(tensor) for name, tensor in (*tensors.items(), *_states(run, names))}
    for name, began in strategy.tensors(only_moving=True):
        hashes[name] = hashes.get(name, "") + tensor_hash(began)
    gathered = run.components.transport.all_gather_object(
        [run.loop_state.comparison.agreed, hashes], "name the difference", where()
    )
    damage = first_damage([hashes for _, hashes in gathered], run.config.mesh.part_of())
    if damage is None:
        return
    _raise(rank, damage, max(step for step, _ in gathered))


def refuse_apart(run: RunState, gathered: list[Mapping[str, str]]) -> None:
    """Raise on the rank to blame where GPUs have found that ranks began a pass with different statistics. Not a collective.

    The others continue to their next exchange, which that rank does not come to: some of them may know before it does.
    `gathered` has each rank's sums by name; none of ranks that did not look.
    """
    if gathered and run.loop_state.comparison.every:
        label = (
            f"{type(run.loop_state.prepared.models[0]).__name__}." if len(run.loop_state.prepared.models) == 1 else ""
        )
        named = [{f"{label}{name}": value for name, value in sums.items()} for sums in gathered]
        damage = first_damage(named, [0 if sums else 1 + rank for rank, sums in enumerate(gathered)])
        if damage is not None and damage.ranks[0] == run.components.transport.rank:
            _raise(run.components.transport.rank, damage, run.loop_state.comparison.agreed)


def _raise(rank: int, damage: Damage, agreed: int) -> NoReturn:
    held = "it did" if len(damage.ranks) == 1 else "they did"
    error = RanksDiffer(
        damage.ranks[0], damage.what, f"after step {agreed} {held}" if agreed else f"{held} at the start"
    )
    raise error if rank == damage.ranks[0] else PeerLost(str(error))


def _compared_optimizers(run: RunState) -> list[Optimizer]:
    """Those whose state every rank holds whole; what others keep in theirs is not known."""
    return _torchs_optimizers(run) if run.components.strategy.name == "ddp" else []


def _torchs_optimizers(run: RunState) -> list[Optimizer]:
    """Those of `ddp`, where nobody knows yet which of them are shared out later."""
    if run.config.mesh.strategy != "ddp":
        return []
    optimizers = [one for one in run.loop_state.prepared.taken if isinstance(one, Optimizer)]
    return [one for one in optimizers if type(one).__module__.startswith("torch.optim.")]


def _states(run: RunState, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    """The optimizers' tensors, in an order that is the same on every rank."""
    for optimizer in _compared_optimizers(run):
        state = optimizer.state
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            label = names.get(id(parameter), "a parameter")
            for key, value in sorted(state.get(parameter, {}).items(), key=lambda item: str(item[0])):
                for tensor in _tensors_in(value):
                    yield f"{key} of {label} in {type(optimizer).__name__}", tensor


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_meta:
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors_in(one)
