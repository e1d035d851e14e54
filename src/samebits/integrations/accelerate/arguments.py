"""What Accelerator is given: what cannot be exact is refused, and how many lanes a step has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from accelerate.utils import DistributedDataParallelKwargs

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.environment import decode
from samebits.rank.run.run import Run

USUAL_LANES = 4
REFUSED = {
    "deepspeed_plugin": "DeepSpeed",
    "deepspeed_plugins": "DeepSpeed",
    "fsdp_plugin": "FSDP",
    "torch_tp_plugin": "tensor parallelism",
    "megatron_lm_plugin": "Megatron-LM",
    "parallelism_config": "a ParallelismConfig",
}
BY_VARIABLE = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}
"""What `accelerate launch` switches on without the script."""


FORMS = (
    "Call accelerator.backward(loss) instead, in the loop over a prepared loader.",
    "Do this behind backward where accelerator.sync_gradients is true; accelerator.clip_grad_norm_ sees to that itself.",
)
"""The help for `loss.backward()`, and for what belongs behind a step's lanes."""


def script_seed() -> int:
    """What the script has seeded torch with by now; 0 if it has not.

    [Note: seeds below 2^32] set_seed gives NumPy the same number, which takes no larger one; a torch that nobody seeded has
    one of 53 bits.
    """
    seed = torch.initial_seed()
    return seed if seed < 1 << 32 else 0


@contextmanager
def naming_set_seed(call: str, begins: str = "") -> Iterator[None]:
    """Let processes whose seeds differ name where those are from: `call` says that of `set_seed`, if it was that.

    Raises:
        UsageError: where they differ.
    """
    try:
        yield
    except UsageError as error:
        if call and error.problem.startswith(begins):
            raise UsageError(
                f"{call} with another number on each process: {error.problem}",
                "Call set_seed(seed) with the same number on all, without device_specific=True: each batch has random numbers of its own already.",
            ) from None
        raise


def world_size() -> int:
    """The number of processes, before they have met; under srun and mpirun too."""
    return decode(os.environ).position.world_size


def usual_lanes(accumulation: int) -> int:
    """How many batches a step has where nobody says: for 4 processes, or for all where there are more."""
    processes = world_size()
    usual = accumulation * -(-max(USUAL_LANES, processes) // accumulation)
    return next(number for number in range(usual, usual * processes + 1, accumulation) if number % processes == 0)


def refuse(given: dict[str, Any]) -> None:
    """Raise `UsageError` for what cannot be exact."""
    found = [words for name, words in REFUSED.items() if given.get(name) is not None]
    found += [words for name, words in BY_VARIABLE.items() if os.environ.get(name, "false").lower() == "true"]
    for handler in given.get("kwargs_handlers") or ():
        hook = getattr(handler, "comm_hook", None)
        if (
            isinstance(handler, DistributedDataParallelKwargs)
            and hook is not None
            and getattr(hook, "value", hook) != "no"
        ):
            found.append(f"the communication hook {hook}")
    if found:
        raise UsageError(
            f"{found[0]} adds gradients in its own way, so bits would depend on the number of processes.",
            "Leave it out, or use Accelerate's own Accelerator.",
        )


def refuse_no_sync() -> NoReturn:
    """Which gradients stay on a process would depend on their number; so does what is built on it (LocalSGD).

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "no_sync (and LocalSGD, which uses it) keeps gradients of some batches to a process, so bits depend on their number.",
        "Write `with accelerator.accumulate(model):`, and name gradient_accumulation_steps= in Accelerator.",
    )


def accumulation_of(given: dict[str, Any]) -> int:
    """The number of gradient accumulation steps that the script or its launcher names.

    Raises:
        UsageError: for another thing than a whole number.
    """
    plugin = given.get("gradient_accumulation_plugin")
    steps = plugin.num_steps if plugin is not None else given.get("gradient_accumulation_steps", 1)
    if plugin is None:
        steps = int(os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps))
    if not isinstance(steps, int) or steps < 1:
        raise UsageError(
            f"gradient_accumulation_steps must be a whole number of at least 1, but is {steps!r}.", "Use 1."
        )
    return steps


def check_lanes(run: Run, lanes: int, accumulation: int) -> None:
    """Raise `UsageError` for lanes that cannot be shared out; say what a step takes where that is more than a plain run would.

    Args:
        run: of this process.
        lanes: batches of a step.
        accumulation: the script's gradient accumulation steps.
    """
    processes = run.world_size
    if lanes % accumulation:
        raise UsageError(
            f"gradient_accumulation_steps={accumulation} does not divide {lanes} lanes.",
            f"Use {-(-lanes // accumulation) * accumulation} lanes (--lanes, or Accelerator(lanes=)).",
        )
    if lanes % processes:
        raise UsageError(
            f"{processes} processes do not divide {lanes} lanes, so some would have more batches than others.",
            f"Use {-(-lanes // processes) * processes} lanes, or another number of processes.",
        )
    if run.rank == 0 and lanes != processes * accumulation:
        processes = lanes // accumulation
        say(
            f"each optimizer step takes {lanes} batches (lanes), as under {processes} process{'es' * (processes > 1)}"
            f"{f' with gradient_accumulation_steps={accumulation}' if accumulation > 1 else ''}."
        )
