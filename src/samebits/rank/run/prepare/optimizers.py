"""What is watched at each step of a prepared optimizer, and under 16-mixed: whether its update is skipped.

An update is skipped on every rank when a gradient of the optimizer's parameters is not finite.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.machine.torch_private import find_unfinite
from samebits.notices import say
from samebits.protocol.environment import RankEnvironment
from samebits.rank.caller import where
from samebits.rank.checkpoint.parts.optimizers import keep_groups
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.contract import RIGHT_FORM, misplaced
from samebits.rank.strategy.optimizer_kinds import follow_parameters
from samebits.rank.strategy.precision import LossScale, Precision

PATIENCE = 16
"""After this many skipped updates in a row we say so: the scale is 1 by then, so it is hardly at fault."""


class Overflow:
    """Skips updates of one optimizer."""

    def __init__(self, run: RunState, scale: LossScale) -> None:
        self._run, self._scale = run, scale
        self._held: list[tuple[Tensor, Tensor]] = []

    def watch(self, optimizer: Optimizer) -> list[Any]:
        """Look at each of the optimizer's steps from now on; return the handles that end it."""
        return [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - torch's signature
        _refuse_second_scaler()
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        there = [parameter for parameter in owned if parameter.grad is not None and not parameter.grad.is_meta]
        held = [(parameter, parameter.grad) for parameter in there]
        has_gradients, overflow = self._agreed(bool(held), not _all_finite([gradient for _, gradient in held]))
        if not has_gradients:
            return
        self._scale.record(overflow)
        # [Note: an update is skipped by hiding the gradients]
        # The optimizer keeps its own `step`: torch's leave a parameter without a gradient alone, with its momentum and its
        # weight decay.
        if overflow:
            self._held = held
            for parameter, _ in held:
                parameter.grad = None
            self._say()

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - torch's signature
        for parameter, gradient in self._held:
            parameter.grad = gradient
        self._held = []

    def _agreed(self, has_gradients: bool, overflow: bool) -> tuple[bool, bool]:
        """One decision for all ranks. Replicas hold the same gradients, so theirs is the same without an exchange."""
        if self._run.config.mesh.stages == 1:
            return has_gradients, overflow
        gathered = self._run.components.transport.all_gather_object(
            [has_gradients, overflow], "optimizer.step", where()
        )
        return any(has for has, _ in gathered), any(over for _, over in gathered)

    def _say(self) -> None:
        run = self._run
        if (
            self._scale.skipped_in_a_row == PATIENCE
            and run.components.transport.rank == 0
            and run.loop_state.position.region is Region.STEP
        ):
            say(
                f"{PATIENCE} updates in a row were skipped, because gradients were not finite even with a loss "
                f"scale of {self._scale.value:g}. The loss itself may have diverged: lower the learning rate, or use "
                f"bf16-mixed."
            )


def _all_finite(gradients: list[Tensor]) -> bool:
    """Whether no element is infinite or NaN; one look at each device for all of them."""
    found: dict[torch.device, Tensor] = {}
    gradients = [one if one.layout is torch.strided else one.coalesce().values() for one in gradients]
    for (device, dtype), some in _by_kind(gradients).items():
        if device.type != "cpu" and dtype.is_floating_point:
            flag = found.setdefault(device, torch.zeros((), dtype=torch.float32, device=device))
            # As torch's GradScaler does; times 1.0 changes none of them.
            find_unfinite(some, flag, torch.ones_like(flag))
            continue
        odd = torch.stack([torch.isfinite(one).all() for one in some]).logical_not().any().to(torch.float32)
        found[device] = found[device] + odd if device in found else odd
    return not any(map(bool, found.values()))


def _by_kind(gradients: list[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        kinds.setdefault((gradient.device, gradient.dtype), []).append(gradient.detach())
    return kinds


def _refuse_second_scaler() -> None:
    """Refuse torch's own scaler around ours, which would scale twice."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - who calls optimizer.step() is known to the stack only
    for _ in range(6):
        if frame is None:
            return
        if frame.f_code is GradScaler.step.__code__:
            raise UsageError(
                'precision="16-mixed" scales the loss itself.',
                "Leave out the GradScaler: run.backward(loss) in the lanes, optimizer.step() after them.",
            )
        frame = frame.f_back


FAST_FP16 = ("avx512_fp16", "amx_fp16", "fp16")
"""Capabilities (as torch names them) of a CPU that multiplies in float16 itself."""


def make_precision(name: str, device: torch.device, environment: RankEnvironment) -> Precision:
    """Make the precision called `name`; say once where the device has no units of its own for it.

    In the row `plain` of `samebits verify` the loss is not scaled, because gradients are compared as they are.

    Raises:
        UsageError: when the device does not support the dtype.
    """
    plain = bool(environment.settings and environment.settings.evidence.get("plain"))
    if name == "bf16-mixed" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UsageError(
            f"{torch.cuda.get_device_name(device)} has no bfloat16, which bf16-mixed needs.", "Use 16-mixed."
        )
    if name == "16-mixed" and device.type == "cpu" and environment.position.rank == 0 and not _cpu_has_fp16():
        say(
            "this CPU has no float16 units, so 16-mixed is correct but slow here (matrix products were measured "
            "24 times slower than in float32). Use bf16-mixed, or a GPU."
        )
    return Precision(name, device.type, LossScale() if name == "16-mixed" and not plain else None)


def _cpu_has_fp16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in FAST_FP16)


def watch(run: RunState, optimizer: Optimizer, updates_by: str | None) -> None:
    """Check that the optimizer updates the prepared models, and only them; look at each of its steps."""
    known = {id(parameter) for model in run.loop_state.prepared.models for parameter in model.parameters()}
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in known for parameter in owned)
    if foreign == len(owned):
        raise UsageError(
            f"{type(optimizer).__name__} updates no parameter of the prepared model.",
            "Make it from model.parameters() of the same object, after the model has its final layers, and prepare "
            "both.",
        )
    if foreign:
        raise UsageError(
            f"{type(optimizer).__name__} updates {foreign} tensors that belong to no prepared model, so their "
            "gradients would not be reduced.",
            "Pass them (or their module) to run.prepare too.",
        )
    follow_parameters(optimizer)
    run.components.checks.take(optimizer)
    run.loop_state.prepared.hooks.extend([*keep_groups(optimizer), optimizer.register_step_pre_hook(_before_step(run))])
    if run.components.scaler is not None:
        run.loop_state.prepared.hooks.extend(Overflow(run, run.components.scaler).watch(optimizer))
    run.components.strategy.take_optimizer(optimizer, updates_by, run.loop_state.position.require_same_on_every_rank)


def _before_step(run: RunState) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]:
    def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls_back = any(callable(value) for value in [*args, *kwargs.values()])
        if calls_back and (not run.components.strategy.takes_closures or run.components.scaler is not None):
            why = run.components.strategy.name if run.components.scaler is None else "16-mixed"
            raise UsageError(
                f"optimizer.step(closure) computes more gradients inside the update, but {why} must prepare them "
                "before it.",
                "Use --strategy ddp (and precision 32 or bf16-mixed), or call optimizer.step() after the "
                f"lanes:\n{RIGHT_FORM}",
            )
        if run.loop_state.position.region is Region.LANE:
            raise misplaced(
                "optimizer.step() was called inside a step's lanes, where the gradient is not complete",
                f"Call it after them:\n{RIGHT_FORM}",
            )
        if run.loop_state.open_pass.broken is not None and not calls_back:
            raise UsageError(
                f"There is no gradient for this step: {run.loop_state.open_pass.broken}.",
                f"Write the loop like this:\n{RIGHT_FORM}",
            )
        if not run.loop_state.prepared.preparations.holds(optimizer):
            raise UsageError(
                f"This {type(optimizer).__name__} was replaced by one that was prepared later for the same parameters, so no "
                "state has it any more.",
                "Call step() of the later one, or prepare both before the loop.",
            )
        if run.loop_state.position.region is Region.STEP:
            run.loop_state.rates.check(run.components.step_timer.step, optimizer.param_groups)
        run.components.checks.before_update(optimizer)
        if run.loop_state.looks.kept:
            run.loop_state.looks.note_update([one for group in optimizer.param_groups for one in group["params"]])
        run.components.strategy.before_update(optimizer)

    return before_step
