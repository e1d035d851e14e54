"""The models as laid out on this rank: parameters, gradients and buffers in flat memory, and who watches them.

A layout holds until the script changes its model; it follows between two passes, on every rank at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from samebits.errors import UsageError
from samebits.rank.strategy.agreement import check_same_models, refuse_unsupported
from samebits.rank.strategy.contract import misplaced_backward
from samebits.rank.strategy.norm import has_synchronised_norm
from samebits.rank.strategy.other_users import agree_who_stays
from samebits.rank.strategy.replica.arena import DeviceOf, ParameterArena, PreviousLayout, Segment, alias, lay_out
from samebits.rank.strategy.replica.buffers import BufferBank
from samebits.rank.strategy.replica.lane_gradients import GradientBuffer, GradientBufferPool, GradientBufferPools
from samebits.rank.strategy.replica.memory import ParameterMemory, private_zeros
from samebits.rank.strategy.replica.sparse_embedding import EmbeddingTables
from samebits.rank.transport.contract import Transport
from samebits.rank.transport.local.native import available, compiled


class FlatMove(TorchFunctionMode):
    """While it is active, `parameter.to(device)` of the model's parameters returns them as they lie in flat memory.

    Args:
        model: not on the device yet.
        device: where it moves.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self._device = device
        moving = {id(one): one for one in _left_alone(model) if one.device != device and one.numel()}
        segments, self._flats = lay_out(list(moving.values()), private_zeros, place=lambda _: device)
        self._segments = dict(zip(moving, segments, strict=True))
        self._moved: dict[int, tuple[int, torch.Size, tuple[int, ...]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        segment = self._segments.get(id(args[0])) if func is Tensor.to and args else None
        if segment is None or not self._only_moves(args[1:], kwargs or {}):
            return func(*args, **(kwargs or {}))
        moved = alias(self._flats[segment.flat], segment.offset, args[0])
        self._moved[id(args[0])] = moved.data_ptr(), moved.shape, moved.stride()
        return moved

    def _only_moves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments of `to` are the device, and no dtype or memory format."""
        others = [one for one in (*args[1:], *kwargs.values()) if one is not None and not isinstance(one, bool)]
        return bool(args) and args[0] == self._device and not others

    def unmoved(self, parameters: Sequence[nn.Parameter]) -> tuple[dict[int, Segment], list[Tensor]]:
        """As of `ParameterArena`: the segments, by number, of those that are where they landed, and the flats."""
        retained = {
            number: self._segments[id(one)]
            for number, one in enumerate(parameters)
            if self._moved.get(id(one)) == (one.data_ptr(), one.shape, one.stride())
        }
        return retained, self._flats if retained else []


def _left_alone(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that nothing but `model.to` moves: recurrent layers, for one, put theirs together for cuDNN."""
    own = {id(one) for module in model.modules() if _moves_itself(module) for one in module.parameters(recurse=False)}
    return [one for one in model.parameters() if id(one) not in own and type(one.data) is Tensor]


def _moves_itself(module: nn.Module) -> bool:
    """Whether its class has replaced what `to` calls for each module."""
    owner = next(one for one in type(module).__mro__ if "_apply" in vars(one))
    return owner is not nn.Module


Listener = Callable[[int, int], None]
"""Called while a lane's backward runs: the trainable parameter of this number, which is in this bucket (-1: in none), has a new
gradient."""


class ModelLayout:
    """Parameters, gradients and buffers of the prepared models.

    Args:
        peers: the ranks that hold the same parameters.
        most_held: how many buffers of gradients a pass needs at a time.
        in_one_lane: whether the run has one lane; then nobody watches gradients, which stay where autograd made them.
        looks: whether embeddings report which rows they touched.
    """

    def __init__(
        self, peers: Transport, memory: ParameterMemory, most_held: int, *, in_one_lane: bool, looks: bool = True
    ) -> None:
        self._peers, self.memory, self._in_one_lane = peers, memory, in_one_lane
        self._looks = looks and not in_one_lane
        self.models: list[tuple[str, nn.Module]] = []
        self.others: list[tuple[str, nn.Module]] = []
        """Modules that are not trained, whose buffers lanes start from too."""
        self.absent: set[int] = set()
        """Identities of parameters and buffers that other ranks hold."""
        self.rules: dict[str, str] = {}
        """Rules for buffers that differ between lanes."""
        self.stay: frozenset[int] = frozenset()
        """Identities of parameters and buffers that keep their memory; see `other_users`."""
        self.arena = ParameterArena(())
        self.device = torch.device("cpu")
        """Where the parameters are; the first ones, of a model on several devices."""
        self._flat_moves: list[FlatMove] = []
        """Of models that were brought here and are not laid out yet."""
        self.bank = BufferBank((), {})
        self.trainable: list[nn.Parameter] = []
        self.tables = EmbeddingTables()
        """Those among `trainable`."""
        self.optimizers: list[Optimizer] = []
        """Those that update parameters as a whole, of which some want sparse gradients."""
        self.bucket_of: list[int] = []
        """The bucket of each trainable parameter; -1 if it has no elements."""
        self._pools = GradientBufferPools(peers, most_held)
        self.pool: GradientBufferPool
        """Slots for the gradients of `trainable`."""
        self.listener: Listener | None = None
        """Set while a lane's backward runs."""
        self.arrivals: list[int] = []
        """The parameters that the lane's backward calls reached, as far as they are only noted."""
        self.only_notes = False
        """Whether small gradients of the running backward need only be noted."""
        self._gate: Any = None
        """What the hooks of gradients that may be only noted share, with the compiled part."""
        self.result: GradientBuffer | None = None
        """The last pass's result, as long as `p.grad` is its view."""
        self.on_watch: Callable[[], None] = _nothing
        """Called after gradients were laid out anew."""
        self._hooks: list[Any] = []
        self.here: set[int] = set()
        """Identities of the parameters."""
        self.exchanges_by_itself = False
        """Whether layers exchange over torch's default group during forward and backward."""
        self._ever: dict[int, tuple[str, nn.Parameter]] = {}
        """Every parameter that a prepared model ever had, by identity; kept alive, so no identity is reused."""

    def bring(self, model: nn.Module, device: torch.device) -> None:
        move = FlatMove(model, device)
        with move:
            model.to(device)
        self._flat_moves.append(move)

    def adopt(self, models: Sequence[nn.Module]) -> None:
        self.models = [(f"{type(model).__name__}{number or ''}", model) for number, model in enumerate(models)]
        refuse_unsupported(self.models)
        check_same_models(self.models, self._peers)
        self.lay_out()

    def follow_changes(self) -> None:
        """Lay the models out anew if the script changed them between passes, in the same way on every rank.

        Raises:
            UsageError: when ranks changed it in different ways.
        """
        if self.arena.has_changed() or self.bank.has_changed():
            self.lay_out_changed()

    def lay_out_changed(self) -> None:
        """Lay out models that changed on every rank; see `follow_changes`."""
        if not self.bank.has_changed() and self.arena.only_froze():
            flags = "".join("01"[parameter.requires_grad] for parameter in self.arena.parameters)
            if len(set(self._peers.all_gather_object(flags, "frozen parameters"))) > 1:
                raise UsageError(
                    "requires_grad differs between ranks.", "Freeze and unfreeze the same parameters on every rank."
                )
            self._watch()
            return
        if not self.memory.is_ours:
            raise UsageError(
                "A parameter was moved, replaced or resized, or a layer was added or removed, after run.prepare. "
                "Under hogwild, the parameters are in memory that all ranks share.",
                "Change the model before run.prepare and load values with load_state_dict, or use --strategy ddp.",
            )
        refuse_unsupported(self.models, self.absent)
        check_same_models(self.models, self._peers, self.absent)
        self.lay_out()

    def lay_out(self, *, compact: bool = False, place: DeviceOf = attrgetter("device")) -> None:
        """Lay out parameters, gradients and buffers anew. Collective: call it on every rank.

        Args:
            compact: free the memory of what this rank no longer holds, by moving what stays.
            place: the device of each parameter that moves.
        """
        # The pools' views have the shapes of the old arena.
        self._pools.close()
        self.exchanges_by_itself = has_synchronised_norm(model for _, model in self.models)
        memory = self.memory
        previous: list[PreviousLayout] = [] if compact else [self.arena, *self._flat_moves]
        self._flat_moves = []
        if memory.is_ours:
            self.stay = agree_who_stays(self.models, self._peers, self.absent, self.addresses)
        self.arena = ParameterArena(
            self.models, self.absent, memory.allocate, memory.master, self.stay, previous, place
        )
        self.device = self.arena.flats[0].device if self.arena.flats else torch.device("cpu")
        self.here = {id(parameter) for parameter in self.arena.parameters}
        for name, parameter in zip(self.arena.names, self.arena.parameters, strict=True):
            self._ever[id(parameter)] = (name, parameter)
        self._lay_out_buffers()
        self._watch()
        memory.keep(self.arena.flats)
        memory.publish()

    def carry(self, others: Sequence[tuple[str, nn.Module]]) -> None:
        """Carry the buffers of modules that are not trained. Collective: call it on every rank, between passes."""
        self.others.extend(others)
        if self.models:
            self._lay_out_buffers()

    def _lay_out_buffers(self) -> None:
        if not self.memory.is_ours:
            self.bank = BufferBank((), self.rules)
            return
        stay = self.stay
        if self.others:
            stay |= agree_who_stays(self.others, self._peers, self.absent, self.addresses)
        self.bank = BufferBank(self.models, self.rules, self.absent, stay=stay, others=self.others)

    @property
    def gradient_bytes(self) -> int:
        """The memory of all gradients; 0 before there are any."""
        return self.pool.nbytes if hasattr(self, "pool") else 0

    @property
    def addresses(self) -> set[int]:
        return {*self.arena.addresses, *self.bank.addresses}

    def _watch(self) -> None:
        """Lay out and watch the gradients of the parameters that are trainable now."""
        held = {id(parameter): parameter.grad for parameter in self.arena.parameters}
        self.stop_watching()
        self.trainable = [parameter for parameter in self.arena.parameters if parameter.requires_grad]
        self.let_go_of_result()
        self.tables = EmbeddingTables.of(self.models, self.trainable, looks=self._looks)
        self.pool = self._pools.of(self.arena.parameters, self.tables.numbers)
        buckets = {member: number for number, bucket in enumerate(self.pool.buckets) for member in bucket.members}
        self.bucket_of = [buckets.get(number, -1) for number in range(len(self.trainable))]
        if available() and not self._in_one_lane:
            self._gate = compiled.Arrivals(self.arrivals, _reporter(ref(self)))
        for number, parameter in enumerate(self.trainable):
            gradient = held.get(id(parameter))
            # What the script has accumulated so far stays, unless the parameter has got another form.
            fits = gradient is not None and gradient.shape == parameter.shape and gradient.dtype == parameter.dtype
            parameter.grad = gradient.to(parameter.device) if fits and gradient is not None else None
            if not self._in_one_lane:
                self._hooks.append(_hook_first(parameter, self._hook(number)))
        self.on_watch()

    def name_of(self, number: int) -> str:
        """The name of a trainable parameter, by its number; with the model's, where there are several models."""
        for title, model in self.models:
            for name, parameter in model.named_parameters():
                if parameter is self.trainable[number]:
                    return name if len(self.models) == 1 else f"{title}.{name}"
        return f"parameter {number}"

    def listen_to(self, listener: Listener | None, *, only_notes: bool = False) -> None:
        """Let `listener` know what arrives from here on: its backward begins; None: it is over.

        Args:
            only_notes: whether small gradients need only be noted.
        """
        self.listener, self.only_notes = listener, only_notes
        if self._gate is not None:
            self._gate.are_noted = only_notes

    def report(self, number: int) -> None:
        """Call the listener, for a hook of the compiled part."""
        if self.listener is None:
            raise misplaced_backward()
        self.listener(number, self.bucket_of[number])

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        bucket, note = self.bucket_of[number], self.arrivals.append
        if self._gate is not None and not self.pool.is_copied[number]:
            return self._gate.hook(number)  # type: ignore[no-any-return]

        # [Note: why hooks refer to the layout weakly]
        # Parameters hold their hooks, in C++, where Python's collector does not look. A hook that held the layout, which
        # holds the parameters, would keep the model alive forever.
        layout = ref(self)
        report = _reporter(layout)

        def gradient_arrived(_: Tensor) -> None:
            report(number)

        # This one runs for every parameter, so it does little and calls nothing.
        def gradient_noted(_: Tensor) -> None:
            found = layout()
            if found is None:
                return
            if found.listener is None:
                raise misplaced_backward()
            if found.only_notes:
                note(number)
            else:
                found.listener(number, bucket)

        return gradient_arrived if self.pool.is_copied[number] else gradient_noted

    def kept_sparse(self) -> frozenset[int]:
        """The trainable parameters whose `p.grad` is sparse after a pass in which all their gradients were."""
        sparse = self.tables.sparse
        return self.tables.kept_sparse(self.trainable, self.optimizers) if sparse else sparse

    def listen(self) -> Callable[[], None]:
        """Let embeddings report which rows the open lane touches, until what is returned is called."""
        return self.tables.listen(lambda: self.listener is not None) if self.tables.embeddings else _nothing

    def let_go_of_result(self) -> None:
        """Let the last pass's buffer be used again once the script holds no gradient of it any more."""
        if self.result is not None:
            self.pool.drop_held()
            self.pool.give_back(self.result)
            self.result = None

    def refuse_unknown_parameters(self, optimizer: Optimizer) -> None:
        """Raise `UsageError` if `optimizer` updates a parameter that no prepared model has (any more)."""
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if self.here.issuperset(map(id, owned)):
            return
        live = {id(parameter) for _, model in self.models for parameter in model.parameters()}
        for unknown in owned:
            if id(unknown) in self.here or id(unknown) in live:
                continue
            name, _ = self._ever.get(id(unknown), ("", unknown))
            if name:
                raise UsageError(
                    f"The parameter {name!r} was replaced by another object after run.prepare, so the optimizer updates "
                    "one that the model no longer has.",
                    "Use load_state_dict without assign=True, or replace it before the optimizer is made.",
                )
            raise UsageError(
                f"{type(optimizer).__name__} updates a tensor of shape {tuple(unknown.shape)} that belongs to no "
                "prepared model, so its gradient was not reduced.",
                "Pass its module to run.prepare too.",
            )

    def checksums(self) -> list[int]:
        """Sums over the bits of parameters and buffers; none before a model is adopted."""
        return [*self.arena.checksums(), *self.bank.checksums()] if self.models else []

    def stop_watching(self) -> None:
        """Remove the hooks; parameters stay usable."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _nothing() -> None:
    """Do nothing: nothing is watching."""


def _hook_first(parameter: nn.Parameter, hook: Callable[[Tensor], None]) -> Any:
    """Register `hook` before the script's own, whenever those were registered."""
    handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    hooks: Any = parameter._post_accumulate_grad_hooks  # noqa: SLF001 - an ordered dictionary, but torch offers no order
    # [Note: why our hook runs before the script's]
    # Autograd may give two gradients one piece of memory, until our hook copies each into its own place. A hook of the
    # script that writes into both would write twice if it ran before ours.
    for other in [number for number in hooks if number != handle.id]:
        hooks[other] = hooks.pop(other)
    return handle


def _reporter(layout: Callable[[], ModelLayout | None]) -> Callable[[int], None]:
    """`ModelLayout.report`, without keeping the layout alive."""

    def report(number: int) -> None:
        if (found := layout()) is not None:
            found.report(number)

    return report
