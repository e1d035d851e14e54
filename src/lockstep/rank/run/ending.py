"""The end of a run: a last agreement, what stays in the run folder, and letting go."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from lockstep.notices import say
from lockstep.protocol.journal import device_words
from lockstep.protocol.meeting_place import left_at
from lockstep.rank.checks.script.labels import names_without
from lockstep.rank.init.device import is_shared
from lockstep.rank.init.join import leave
from lockstep.rank.run.loop.evaluation import say_shares
from lockstep.rank.run.loop.loss_gauge import settle_losses
from lockstep.rank.run.loop.replicas import bits_held, compare
from lockstep.rank.run.loop.testimony import testify_end
from lockstep.rank.run.loop.training import say_written
from lockstep.rank.run.position.metrics import keep
from lockstep.rank.run.run_state import RunState
from lockstep.rank.strategy.agreement import tensor_hash
from lockstep.rank.transport.contract import AT_THE_END


def end(run: RunState) -> bool:
    """See `lockstep.finish`. Returns whether the run ended well, on all ranks."""
    failed = sys.exc_info()[0] is not None or getattr(sys, "last_value", None) is not None
    failed = failed or (
        run.setup.folder is not None and run.setup.folder.failure(run.machinery.transport.rank).exists()
    )
    try:
        if not failed and not run.progress.automatic.has_ended:
            if run.machinery.meter is not None:
                run.machinery.meter.close()
            settle_losses(run)
            say_shares(run.machinery)
            mine = [
                bits_held(run),
                run.machinery.written.take() if run.machinery.written is not None else {},
            ]
            told = run.machinery.transport.all_gather_object(mine, AT_THE_END, "".join(left_at))
            say_written(run.machinery, [paths for _, paths in told])
            compare(run, [one for one, _ in told])
            testify_end(run)
            _write_result(run)
            run.progress.automatic.note_end()
            _write_stages(run)
    finally:
        run.progress.automatic.end()
        run.progress.snapshots.end()
        run.machinery.strategy.close()
        run.machinery.strangers.close()
        if run.machinery.written is not None:
            run.machinery.written.close()
        for hook in run.progress.hooks:
            hook.remove()
        if not failed:
            run.machinery.transport.close()
            leave()
        run.progress.automatic.leave_loop()
    return not failed and not run.progress.automatic.has_ended


def _write_result(run: RunState) -> None:
    if run.machinery.transport.rank != 0 and run.setup.mesh.stages == 1:
        return
    digest = state_hash(run) if run.progress.models else ""
    if run.machinery.transport.rank != 0:
        return
    without = names_without(run)
    if run.setup.folder is None:
        if digest and run.progress.said_decisions:
            say(f"bits sha256:{digest}" + (f" resumed without: {', '.join(without)}" if without else ""))
        return
    earlier_epochs, earlier_steps = run.progress.resumed
    result = {
        "steps": run.machinery.ledger.step - earlier_steps,
        "epochs": len(run.progress.epochs_seen) - earlier_epochs,
        "earlier_epochs": earlier_epochs,
        "samples": _samples(run.progress.epochs_seen[earlier_epochs:]),
        "bits": f"sha256:{digest}" if digest else "",
        "lanes": run.setup.placement.num_lanes,
        "threads": run.setup.threads,
        **({"without": without} if without else {}),
    }
    keep(run.setup.folder.result, json.dumps(result), run.machinery.ledger)


def _samples(epochs: list[int]) -> str:
    if not epochs:
        return ""
    if len(set(epochs)) == 1:
        return f"{epochs[0]} samples x {len(epochs)} epoch{'s' if len(epochs) > 1 else ''}, each once"
    return f"{sum(epochs)} samples in {len(epochs)} epochs, each once per epoch"


def _write_stages(run: RunState) -> None:
    """Gather every rank's report; rank 0 writes them. Collective: call it on every rank.

    Without stages, nothing happens.

    The form: {"stages": [{"rank": 0, "stage": 0, "layers": ["0", "1"], "cost_s": 0.01, "forward_s": 0.2,
    "backward_s": 0.4, "wait_s": 0.1, "passes": 10, "timeline": [["F", 0, begin_s, end_s], ...]}, ...],
    "micro_batches": 8, "schedule": "1f1b", "strategy": "pipeline"}; times are those of
    `time.monotonic`, sums over the run.
    """
    mesh, folder = run.setup.mesh, run.setup.folder
    if mesh.stages == 1 or folder is None:
        return
    told = run.machinery.transport.all_gather_object(run.machinery.strategy.report(), "stage report")
    if run.machinery.transport.rank or any(report is None for report in told):
        return
    stages = [{"rank": rank, "stage": mesh.stage(rank), **report} for rank, report in enumerate(told)]
    report = {
        "stages": stages,
        "micro_batches": len(run.setup.lanes),
        "schedule": mesh.schedule if mesh.strategy == "pipeline" else None,
        "strategy": mesh.strategy,
    }
    keep(folder.stages, json.dumps(report), run.machinery.ledger)


def state_hash(run: RunState) -> str:
    """SHA-256 over names and bits of all parameters and buffers, the same for every layout.

    Collective: call it on every rank.
    """
    rank = run.machinery.transport.rank
    tensors = {
        f"{number} {name}": tensor
        for number, model in enumerate(run.progress.models)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)
    }
    mine = {name: tensor_hash(t) for name, t in tensors.items() if rank == (run.machinery.strategy.holder_of(t) or 0)}
    told = (
        [mine] if run.setup.mesh.stages == 1 else run.machinery.transport.all_gather_object(mine, "hash of the model")
    )
    found = {key: value for hashes in told for key, value in hashes.items()}
    digest = hashlib.sha256()
    for name in tensors:
        digest.update(f"{name.partition(' ')[2]} {found[name]}\n".encode())
    return digest.hexdigest()


MUCH = 0.25
"""A share of the memory that other programs take, above which they are told. A screen takes less."""


def held(run: RunState) -> dict[str, int]:
    """Bytes on the rank's device by what they are. What a lane's forward keeps is in the rest."""
    device, progress = run.setup.device, run.progress
    optimizers = [one for one in progress.taken if isinstance(one, Optimizer)]
    states = [values for optimizer in optimizers for values in optimizer.state.values()]
    parts = {
        "parameters": _bytes((one for model in progress.models for one in model.parameters()), device),
        "gradients": run.machinery.strategy.gradient_bytes,
        device_words.STATE: _bytes((value for values in states for value in values.values()), device),
    }
    rest = torch.cuda.memory_allocated(device) - sum(parts.values())
    return parts | {device_words.REST: max(rest, 0)}


def _bytes(values: Iterable[object], device: torch.device) -> int:
    """The memory below tensors on the device, each piece once."""
    storages = [one.untyped_storage() for one in values if isinstance(one, Tensor) and one.device == device]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def watch_device(run: RunState) -> None:
    """From now on errors of the device are told with what lies there."""
    device = run.setup.device
    device_words.present[:] = [device_words.Device(str(device), lambda: held(run))] if device.type == "cuda" else []
    if device.type != "cuda" or is_shared(device, run.setup.environment.position):
        return
    if told := taken_by_others(*torch.cuda.mem_get_info(device), device):
        say(told)


def taken_by_others(free: int, total: int, device: torch.device) -> str:
    """What to say where another program has much of the memory; empty where none has. Ask before the run has any itself."""
    taken = total - free - torch.cuda.memory_reserved(device)
    if taken < MUCH * total:
        return ""
    return (
        f"{taken / device_words.GIB:.1f} of {total / device_words.GIB:.1f} GiB of {device} are taken by another program: "
        "`nvidia-smi` names it, and CUDA_VISIBLE_DEVICES chooses another GPU."
    )
