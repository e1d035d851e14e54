"""What `run.prepare` cannot carry: each refused in a sentence, before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from samebits.errors import UsageError
from samebits.protocol.layout.mesh import Mesh
from samebits.rank.data.loader import PreparedLoader
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.run_state import RunState

DIVIDED = ("pipeline", "model_parallel", "hogwild", "dp")
"""Strategies under which everything is prepared before the loop."""


def refuse_late(run: RunState) -> None:
    """Raise `UsageError` where everything must be prepared before the first epoch or step."""
    if (strategy := run.config.mesh.strategy) in DIVIDED:
        raise UsageError(
            f"run.prepare was called after the first epoch or step, which {strategy} does not allow.",
            "Prepare everything before the loop, or use --strategy ddp.",
        )


class LoneParameter(nn.Module):
    """The module that strategies, states and `verify` see in the place of a parameter, the script's own object.

    Raises:
        UsageError: when it is no leaf that requires a gradient.
    """

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        if not tensor.is_leaf or not tensor.requires_grad:
            why = "was computed from others" if not tensor.is_leaf else "does not require grad"
            raise UsageError(
                f"run.prepare got a tensor of shape {tuple(tensor.shape)} that {why}, so no optimizer can train it.",
                "Pass nn.Parameter(...), or leave it out: constants and batches need no preparation.",
            )
        self._parameters["value"] = tensor  # type: ignore[assignment]  # torch's own registration wants nn.Parameter


CAPTURED = "make_graphed_callables."
"""How the qualified name of the forward begins that torch.cuda.make_graphed_callables puts into a module."""


def refuse_captured(model: nn.Module) -> None:
    """Refuse a model with a captured part: `prepare` lays parameters out anew, and its graphs would read the old ones.

    Raises:
        UsageError: with the part's name.
    """
    for name, part in model.named_modules():
        if getattr(vars(part).get("forward"), "__qualname__", "").startswith(CAPTURED):
            raise UsageError(
                f"run.prepare got a model whose {name or 'forward'} was captured by torch.cuda.make_graphed_callables: its "
                f"graphs would keep reading parameters where they no longer are.",
                "Prepare the model first, and capture it then.",
            )


def objection_to_lanes(mesh: Mesh, num_lanes: int, device_type: str, *, shares: bool = False) -> UsageError | None:
    """Why a model with SyncBatchNorm cannot be carried this way (`shares`: on GPUs of several ranks each); None when it can."""
    if num_lanes != mesh.num_ranks or mesh.stages > 1:
        stages = f" of {mesh.stages} stages each" if mesh.stages > 1 else ""
        return UsageError(
            "SyncBatchNorm communicates inside lanes, which works only with one lane per rank, but there are "
            f"{num_lanes} lanes on {mesh.num_ranks} ranks{stages}.",
            "Use BatchNorm, or as many lanes as ranks under ddp.",
        )
    if mesh.num_ranks > 1 and device_type == "cpu":
        problem = "torch's SyncBatchNorm needs GPUs, but the ranks are on the CPU."
        return UsageError(problem, "Use BatchNorm, or --device cuda.")
    if shares:
        problem = "torch's SyncBatchNorm needs a GPU for each rank, but ranks share one here."
        return UsageError(problem, "Use BatchNorm, or as many ranks as GPUs.")
    return None


def objection_to_steps(steps: Sequence[Sequence[int]]) -> UsageError | None:
    """Why an epoch with so many samples in each lane of each step cannot be trained with SyncBatchNorm; None when it can."""
    for number, sizes in enumerate(steps, 1):
        if 0 in sizes:
            return UsageError(
                f"SyncBatchNorm communicates in every lane, but step {number} has {sum(sizes)} samples, so "
                f"{sizes.count(0)} of {len(sizes)} lanes are empty and the others would wait forever.",
                "Use drop_last=True.",
            )
    return None


def refuse(loop_state: LoopState, thing: Any) -> None:
    kind = type(thing).__name__
    if any(thing is taken for taken in loop_state.prepared.taken) or isinstance(thing, PreparedLoader):
        raise UsageError(f"run.prepare got the same {kind} twice.", "Prepare everything once, before the loop.")
    if isinstance(thing, (DistributedDataParallel, DataParallel)):
        raise UsageError(
            f"run.prepare got {kind}(model), but samebits reduces the gradients itself.",
            f"Pass the model without {kind}.",
        )
    if isinstance(thing, Tensor) and any(
        thing is one for model in loop_state.prepared.models for one in model.parameters()
    ):
        raise UsageError(
            f"run.prepare got a parameter of shape {tuple(thing.shape)} that was already prepared with its module.",
            "Leave it out.",
        )
    if not isinstance(thing, (nn.Module, Tensor, Optimizer, LRScheduler, DataLoader)):
        raise UsageError(
            f"run.prepare does not know what to do with {kind}.",
            "Pass models, parameters, optimizers, DataLoaders and torch's own schedulers. Anything else that changes while "
            "training goes to run.track, with state_dict and load_state_dict, or states do not hold it.",
        )
