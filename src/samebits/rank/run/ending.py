"""The end of a run: a last agreement, what stays in the run folder, what lies in the memory of a GPU, help behind a traceback."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from samebits.machine.visible import visible, write_error
from samebits.notices import say
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.journal import device_words
from samebits.protocol.journal.failure import misuse_text
from samebits.protocol.journal.ring import ENDING, RESULT, Phase
from samebits.protocol.journal.torch_words import way_out
from samebits.protocol.meeting_place import left_at
from samebits.protocol.skipped_steps import OPTION
from samebits.rank.checkpoint.parts.tracking import is_average
from samebits.rank.checks.labels import label_samples, names_without, share_looks
from samebits.rank.checks.loss_gauge import settle_losses
from samebits.rank.checks.replicas import bits_held, compare
from samebits.rank.init.default_group import leave
from samebits.rank.init.device import is_shared
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.metrics import keep
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.agreement import tensor_hash
from samebits.rank.transport.contract import AT_THE_END


def end(run: RunState) -> bool:
    """See `samebits.finish`. Returns whether the run ended well, on all ranks."""
    failed = sys.exc_info()[0] is not None or has_failed(run)
    try:
        if not failed and not run.components.states.has_ended:
            run.components.step_timer.enter(Phase.SCRIPT, ENDING)
            settle_losses(run)
            run.components.checks.say_idle()
            run.loop_state.looks.end()
            label_samples(run)
            # [Note: why earlier lines are settled at the end too]
            # A start that makes no step never said from where it goes on. What a lost start logged would be there twice.
            if run.components.metrics.has_written:
                run.components.metrics.earlier.keep_none()
            run.components.step_timer.end_trace()
            run.components.checks.say_shares()
            mine = [bits_held(run), run.components.checks.written(), run.loop_state.looks.found()]
            gathered = run.components.transport.all_gather_object(mine, AT_THE_END, "".join(left_at))
            bits, paths, found = map(list, zip(*gathered, strict=True))
            run.components.checks.say_written(paths)
            share_looks(run, found)
            compare(run, bits)
            for end_run in run.components.observers.end_run:
                end_run()
            _say_unreached(run)
            _write_result(run)
            run.components.states.note_end()
            _write_stages(run)
    finally:
        run.components.states.end()
        run.components.strategy.close()
        run.components.checks.close()
        for hook in run.loop_state.prepared.hooks:
            hook.remove()
        if not failed:
            run.components.transport.close()
            leave()
        run.components.states.leave_loop()
    return not failed and not run.components.states.has_ended


def has_failed(run: RunState) -> bool:
    """Whether the script of this rank has ended by an exception, as far as its exit handlers can see."""
    # They see the exception in `sys.last_value` only.
    failed = getattr(sys, "last_value", None) is not None
    folder = run.config.folder
    return failed or (folder is not None and folder.failure(run.components.transport.rank).exists())


def _say_unreached(run: RunState) -> None:
    """Name steps that were to be passed over and that the run did not come to."""
    step = run.components.step_timer.step
    if (left := run.loop_state.epoch.skipped.after(step)) and run.is_users_main:
        say(f"{OPTION} names {left.text}, and the run ended after step {step}.")


def _write_result(run: RunState) -> None:
    if run.components.transport.rank != 0 and run.config.mesh.stages == 1:
        return
    digest = state_hash(run) if run.loop_state.prepared.models else ""
    if run.components.transport.rank != 0:
        return
    for has_bits in run.components.observers.has_bits:
        has_bits(digest)
    without = names_without(run)
    if run.config.folder is None:
        if digest and run.loop_state.notices.decisions:
            say(f"bits sha256:{digest}" + (f"; the run resumed without {', '.join(without)}" if without else ""))
        return
    earlier_epochs, earlier_steps = run.loop_state.resumption.resumed
    result = {
        "steps": run.components.step_timer.step - earlier_steps,
        "epochs": len(run.loop_state.epoch.epochs_seen) - earlier_epochs,
        "earlier_epochs": earlier_epochs,
        "samples": _samples(run.loop_state.epoch.epochs_seen[earlier_epochs:], run.loop_state.epoch.accounts),
        "bits": f"sha256:{digest}" if digest else "",
        "lanes": run.config.placement.num_lanes,
        "threads": run.config.threads,
        **run.components.step_timer.ending(),
        **({"without": without} if without else {}),
        **_found(run.loop_state),
    }
    # The launcher has it from the journal too, should somebody have removed the folder.
    run.components.step_timer.note({RESULT: result})
    keep(run.config.folder.result, json.dumps(result), run.components.step_timer)


def _found(loop_state: LoopState) -> dict[str, list[str]]:
    """What takes the claim away, or what it is not of."""
    looks, prepared = loop_state.looks, loop_state.prepared
    of_lanes = set(map(id, prepared.per_lane))
    uncovered = [type(one).__name__ for one in prepared.taken if is_average(one)]
    uncovered += [f"{name} (tracked)" for name, one in prepared.tracked.items() if id(one) not in of_lanes]
    uncovered += ["evaluations"] if loop_state.evaluation.digest else []
    found = {
        "handed_on": [f"{one.name} ({one.where})" if one.where else one.name for one in looks.handed_on],
        "copied": looks.copied,
        "own_samples": [f"{one.name} ({one.where})" if one.where else one.name for one in looks.own_samples],
        "unread": [f"{one.name} ({one.where})" if one.where else one.name for one in looks.unread],
        "uncovered": list(dict.fromkeys(uncovered)),
    }
    return {name: texts for name, texts in found.items() if texts}


def _samples(epochs: list[int], accounts: list[dict[str, Any]]) -> str:
    if not epochs:
        return ""
    each_once = all(_is_each_once(one) for one in accounts if one["steps"] == one["of_steps"])
    if len(set(epochs)) == 1:
        return f"{epochs[0]} samples x {len(epochs)} epoch{'s' if len(epochs) > 1 else ''}{', each once' if each_once else ''}"
    return f"{sum(epochs)} samples in {len(epochs)} epochs{', each once per epoch' if each_once else ''}"


def _is_each_once(account: dict[str, Any]) -> bool:
    """Whether a whole epoch had each sample once; a sampler may draw some again, or leave out more than a short last step."""
    used, of = account["samples"], account["of_samples"]
    return used == account["different"] and (of is None or of - used < max(1, used // account["steps"]))


def _write_stages(run: RunState) -> None:
    """Gather every rank's report; rank 0 writes them. Collective: call it on every rank.

    Without stages, nothing happens.

    The form: {"stages": [{"rank": 0, "stage": 0, "layers": ["0", "1"], "cost_s": 0.01, "forward_s": 0.2,
    "backward_s": 0.4, "wait_s": 0.1, "passes": 10, "timeline": [["F", 0, begin_s, end_s], ...]}, ...],
    "micro_batches": 8, "schedule": "1f1b", "strategy": "pipeline"}; times are those of
    `time.monotonic`, sums over the run.
    """
    mesh, folder = run.config.mesh, run.config.folder
    if mesh.stages == 1 or folder is None:
        return
    gathered = run.components.transport.all_gather_object(run.components.strategy.report(), "stage report")
    if run.components.transport.rank or any(report is None for report in gathered):
        return
    stages = [{"rank": rank, "stage": mesh.stage(rank), **report} for rank, report in enumerate(gathered)]
    report = {
        "stages": stages,
        "micro_batches": len(run.config.lanes),
        "schedule": mesh.schedule if mesh.strategy == "pipeline" else None,
        "strategy": mesh.strategy,
    }
    keep(folder.stages, json.dumps(report), run.components.step_timer)


def state_hash(run: RunState) -> str:
    """SHA-256 over names and bits of all parameters and buffers, the same for every layout.

    Collective: call it on every rank.
    """
    rank = run.components.transport.rank
    tensors = {
        f"{number} {name}": tensor
        for number, model in enumerate(run.loop_state.prepared.models)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)
    }
    # Of a tensor that every rank holds, rank 0's counts.
    mine = {name: tensor_hash(t) for name, t in tensors.items() if rank == (run.components.strategy.holder_of(t) or 0)}
    gathered = (
        [mine] if run.config.mesh.stages == 1 else run.components.transport.all_gather_object(mine, "hash of the model")
    )
    found = {key: value for hashes in gathered for key, value in hashes.items()}
    digest = hashlib.sha256()
    for name in tensors:
        digest.update(f"{name.partition(' ')[2]} {found[name]}\n".encode())
    return digest.hexdigest()


MUCH = 0.25
"""A share of the memory that other programs take, above which they are reported. A screen takes less."""


def held(run: RunState) -> dict[str, int]:
    """Bytes on the rank's device by what they are. What a lane's forward keeps is in the rest."""
    device, loop_state = run.config.device, run.loop_state
    optimizers = [one for one in loop_state.prepared.taken if isinstance(one, Optimizer)]
    states = [values for optimizer in optimizers for values in optimizer.state.values()]
    parts = {
        "parameters": _bytes((one for model in loop_state.prepared.models for one in model.parameters()), device),
        "gradients": run.components.strategy.gradient_bytes,
        device_words.STATE: _bytes((value for values in states for value in values.values()), device),
    }
    rest = torch.cuda.memory_allocated(device) - sum(parts.values())
    return parts | {device_words.REST: max(rest, 0)}


def _bytes(values: Iterable[object], device: torch.device) -> int:
    """The memory below tensors on the device, each piece once."""
    storages = [one.untyped_storage() for one in values if isinstance(one, Tensor) and one.device == device]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def watch_device(run: RunState) -> None:
    """From now on errors of the device name what lies there."""
    device = run.config.device
    device_words.present[:] = [device_words.Device(str(device), lambda: held(run))] if device.type == "cuda" else []
    if device.type != "cuda" or is_shared(device, run.config.environment.position):
        return
    if note := taken_by_others(*torch.cuda.mem_get_info(device), device):
        say(note)


def taken_by_others(free: int, total: int, device: torch.device) -> str:
    """What to say where another program has much of the memory; empty where none has. Ask before the run has any itself."""
    taken = total - free - torch.cuda.memory_reserved(device)
    if taken < MUCH * total:
        return ""
    return (
        f"{taken / device_words.GIB:.1f} of {total / device_words.GIB:.1f} GiB of {device} are taken by another program: "
        "`nvidia-smi` names it, and CUDA_VISIBLE_DEVICES chooses another GPU."
    )


_is_there = False


def help_with_errors(environment: RankEnvironment) -> None:
    """Let this process's last traceback be followed by what to do, where that is known; a misuse needs no traceback.

    Not under `samebits run`, which has it in its report. Torch's own hook may come around it.
    """
    global _is_there
    if _is_there or environment.settings is not None:
        return
    _is_there, previous = True, sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if text := misuse_text(error, getattr(sys.modules.get("__main__"), "__file__", None)):
            # That of an experiment tracker notes there that the script has failed.
            if previous is not sys.__excepthook__:
                previous(kind, error, trace)
            # Torch's hook collects what goes to sys.stderr, and drops it when this one raises.
            with redirect_stderr(sys.__stderr__):
                write_error(text)
            raise SystemExit(2)
        previous(kind, error, trace)
        if words := way_out(error):
            write_error(f"help: {visible(words)}")

    sys.excepthook = hook
