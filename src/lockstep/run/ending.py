"""The end of a run: a last agreement, what stays in the run folder, and letting go."""

from __future__ import annotations

import hashlib
import json
import sys

from torch import Tensor

from lockstep.rank.join import leave
from lockstep.run.loop.evaluation import say_shares
from lockstep.run.loop.replicas import check_replicas
from lockstep.run.loop.testimony import testify_end
from lockstep.run.loop.training import say_written
from lockstep.run.parts import Parts
from lockstep.run.position.kept_file import keep
from lockstep.strategy.agreement import tensor_hash


def end(parts: Parts) -> None:
    """See `lockstep.finish`."""
    failed = sys.exc_info()[0] is not None or getattr(sys, "last_value", None) is not None
    failed = failed or (parts.folder is not None and parts.folder.failure(parts.transport.rank).exists())
    try:
        if not failed:
            if parts.meter is not None:
                parts.meter.close()
            say_shares(parts)
            mine = [parts.strategy.checksums(), parts.written.take() if parts.written is not None else {}]
            told = parts.transport.all_gather_object(mine, "the end of the script")
            say_written(parts, [paths for _, paths in told])
            check_replicas(parts, [sums for sums, _ in told])
            testify_end(parts)
            _write_result(parts)
            _write_stages(parts)
    finally:
        parts.strategy.close()
        parts.strangers.close()
        if parts.written is not None:
            parts.written.close()
        for hook in parts.hooks:
            hook.remove()
        if not failed:
            parts.transport.close()
            leave()


def _write_result(parts: Parts) -> None:
    if parts.transport.rank != 0 and parts.mesh.stages == 1:
        return
    digest = state_hash(parts) if parts.models else ""
    if parts.transport.rank != 0:
        return
    if parts.folder is None:
        if digest and parts.said_decisions:
            print(f"lockstep: bits sha256:{digest}", file=sys.stderr)
        return
    earlier_epochs, earlier_steps = parts.resumed
    result = {
        "steps": parts.ledger.step - earlier_steps,
        "epochs": len(parts.epochs_seen) - earlier_epochs,
        "earlier_epochs": earlier_epochs,
        "samples": _samples(parts.epochs_seen[earlier_epochs:]),
        "bits": f"sha256:{digest}" if digest else "",
        "lanes": parts.placement.num_lanes,
        "threads": parts.threads,
    }
    keep(parts.folder.result, json.dumps(result), parts.ledger)


def _samples(epochs: list[int]) -> str:
    if not epochs:
        return ""
    if len(set(epochs)) == 1:
        return f"{epochs[0]} samples x {len(epochs)} epoch{'s' if len(epochs) > 1 else ''}, each once"
    return f"{sum(epochs)} samples in {len(epochs)} epochs, each once per epoch"


def _write_stages(parts: Parts) -> None:
    """Gather every rank's report; rank 0 writes them. Every rank must call it; nothing happens where no stages are.

    The form: {"stages": [{"rank": 0, "stage": 0, "layers": ["0", "1"], "cost_s": 0.01, "forward_s": 0.2,
    "backward_s": 0.4, "wait_s": 0.1, "passes": 10, "timeline": [["F", 0, begin_s, end_s], ...]}, ...],
    "micro_batches": 8, "schedule": "1f1b", "strategy": "pipeline"}; times are those of `time.monotonic`, sums over the run.
    """
    mesh, folder = parts.mesh, parts.folder
    if mesh.stages == 1 or folder is None:
        return
    told = parts.transport.all_gather_object(parts.strategy.report(), "stage report")
    if parts.transport.rank or any(report is None for report in told):
        return
    stages = [{"rank": rank, "stage": mesh.stage(rank), **report} for rank, report in enumerate(told)]
    report = {
        "stages": stages,
        "micro_batches": len(parts.lanes),
        "schedule": mesh.schedule if mesh.strategy == "pipeline" else None,
        "strategy": mesh.strategy,
    }
    keep(folder.stages, json.dumps(report), parts.ledger)


def state_hash(parts: Parts) -> str:
    """SHA-256 over names and bits of all parameters and buffers, the same for every layout. Every rank must call it."""
    rank = parts.transport.rank
    tensors = {
        f"{number} {name}": tensor
        for number, model in enumerate(parts.models)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)
    }
    mine = {name: tensor_hash(t) for name, t in tensors.items() if rank == (parts.strategy.holder_of(t) or 0)}
    told = [mine] if parts.mesh.stages == 1 else parts.transport.all_gather_object(mine, "hash of the model")
    found = {key: value for hashes in told for key, value in hashes.items()}
    digest = hashlib.sha256()
    for name in tensors:
        digest.update(f"{name.partition(' ')[2]} {found[name]}\n".encode())
    return digest.hexdigest()
