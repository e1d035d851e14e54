"""`run.save_weights`: one safetensors file with the keys of a single device, readable without samebits."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torch import nn

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.regular_file import other_kind
from samebits.rank.caller import where
from samebits.rank.checkpoint.format.sources import Inventory, Source, inventory_of, sources, write_tensors
from samebits.rank.checkpoint.format.state import TensorSet
from samebits.rank.checkpoint.weights.export import PICKLED
from samebits.rank.checkpoint.weights.load import put_elsewhere
from samebits.rank.position.exact_json import digest
from samebits.rank.position.model_state import ModelState
from samebits.rank.position.run_state import Components, RunState
from samebits.rank.transport.together import Together

SAVE = "run.save_weights"


def save_weights(run: RunState, model: nn.Module, path: str | os.PathLike[str]) -> None:
    """See `Run.save_weights`. Atomic: after a crash there is the old file or the new one, never a part.

    Tied weights are written under each of their names, so that a strict `load_state_dict` works anywhere.
    """
    run.loop_state.position.require_same_on_every_rank(SAVE)
    together, tensors = Together(run.components.transport, SAVE, where()), TensorSet()
    record = together.do(lambda: _take(run, model, path, tensors)) or {}
    # Before anything is written: behind `if run.is_main:` this raises at once, on every rank.
    inventories = [record]
    if len(set(together.agree(digest(record)))) > 1:
        inventories = run.components.transport.all_gather_object(record, SAVE, where())
    if problem := _write(run.components, place_of(run, path), sources(inventories), tensors):
        together.refuse(EnvironmentFailure(f"The weights could not be written to {os.fspath(path)}: {problem}"))
    together.agree()


def place_of(run: RunState, path: str | os.PathLike[str]) -> Path:
    """Where a file of the run is. Under `verify` and `bench` runs must not touch the user's, nor see each other's."""
    record = run.config.environment.settings.saving if run.config.environment.settings is not None else None
    if record is not None and Path(path).parent == Path(record.folder):
        return Path(path)
    if not run.config.purpose.is_users and run.config.folder is not None:
        name = f"state-{digest(os.path.abspath(path))}"  # noqa: PTH100 - a name only
        return put_elsewhere(path, run.config.folder.path / "evidence" / name)
    return Path(path)


def _take(run: RunState, model: nn.Module, path: str | os.PathLike[str], tensors: TensorSet) -> Inventory:
    """Put the model's tensors into `tensors`; return what this rank has of them."""
    check_name(path)
    for name, tensor in ModelState.of(model).tensors.items():
        tensors.add(name, tensor, run.components.strategy.holder_of(tensor))
    return inventory_of(tensors)


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise `UsageError` for a path or URL that cannot be the file, or would promise one of another kind."""
    name = os.fspath(path)
    kind = other_kind(name)
    if "\0" in name or not Path(name).name or kind:
        what = f"is {kind}" if kind else "cannot be one"
        raise UsageError(
            f"run.save_weights writes a file, but {name!r} {what}.", "Name a file, such as net.safetensors."
        )
    if Path(name).suffix in PICKLED:
        raise UsageError(
            f"run.save_weights writes safetensors, which torch.load cannot read, but {name!r} ends as its files do.",
            "Name it net.safetensors; `samebits checkpoint export` writes files for torch.load from a state.",
        )


def _write(components: Components, target: Path, found: dict[str, Source], tensors: TensorSet) -> str:
    """Give every rank's tensors to rank 0, which writes; return why it could not, on rank 0."""
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}")
    is_main = components.transport.rank == 0
    if is_main:
        with contextlib.suppress(OSError):  # said when the file is opened
            target.parent.mkdir(parents=True, exist_ok=True)
    _, problem = write_tensors(temporary, found, tensors.tensors, components.transport)
    if is_main:
        try:
            if not problem:
                temporary.replace(target)
        except OSError as error:
            problem = str(error)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return problem
