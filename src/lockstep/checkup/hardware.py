"""Cores, devices, the NVIDIA driver and the limits of the shell, and what a run would make of them."""

from __future__ import annotations

from lockstep.checkup.report import Row, note, ok, problem
from lockstep.checkup.torch_facts import TorchFacts
from lockstep.errors import UsageError
from lockstep.launch.screen.report import device_names
from lockstep.launch.sizing import Machine, Wish, size
from lockstep.machine.driver import newer_driver
from lockstep.machine.no_gpu import INSTALL


def core_rows(machine: Machine, affinity: int) -> list[Row]:
    """The cores, and the default ranks and threads.

    Args:
        machine: as `lockstep run` sees it.
        affinity: cores that this process may be scheduled on, before quotas.
    """
    count = machine.cores.count
    text = f"{count} by {machine.cores.why}"
    if count < affinity:
        text += f", of {affinity} by affinity"
    return [ok("cores", text), _default(machine)]


def _default(machine: Machine) -> Row:
    try:
        sized = size(Wish(), machine)
    except UsageError as error:
        return problem("ranks", error.problem, error.fix)
    ranks = f"{sized.ranks} rank{'s' if sized.ranks != 1 else ''} on {sized.device}"
    threads = f"{sized.threads} thread{'s' if sized.threads != 1 else ''} each"
    text = f"`lockstep run` would start {ranks}, {threads}"
    if machine.omp_threads is not None and sized.threads * sized.ranks > machine.cores.count:
        return note(
            "ranks", f"{text}, by OMP_NUM_THREADS={machine.omp_threads}: more threads than cores",
            "Unset OMP_NUM_THREADS, or give --threads.",
        )  # fmt: skip
    return ok("ranks", text)


def device_row(names: tuple[str, ...], gpus: int, present: int, visible: str | None) -> Row:
    """The devices that are there.

    Args:
        names: those of the devices that torch can use.
        gpus: devices counted without torch, CUDA_VISIBLE_DEVICES respected.
        present: devices of the machine, CUDA_VISIBLE_DEVICES ignored.
        visible: CUDA_VISIBLE_DEVICES; None when it is not set.
    """
    if visible is not None and present and not gpus:
        hidden = "the GPU" if present == 1 else f"all {present} GPUs"
        return note("devices", f"cpu; CUDA_VISIBLE_DEVICES={visible!r} hides {hidden}", "Unset it to use them.")
    if not names:
        text = "cpu" if not gpus else f"cpu; {gpus} GPU{'s' if gpus > 1 else ''} that torch cannot use (see driver)"
        return ok("devices", text)
    chosen = f", by CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
    return ok("devices", f"{device_names(len(names), names)}{chosen}")


def driver_row(driver: str, gpus: int, facts: TorchFacts) -> Row:
    """Whether the driver and the wheel fit.

    Args:
        driver: its version, or empty.
        gpus: devices that this process may use, counted without torch.
        facts: torch's.
    """
    if not driver and not gpus:
        if facts.built_for.startswith("cuda"):
            return note("driver", "no NVIDIA driver here; torch was built for CUDA", "Runs use the CPU.")
        return ok("driver", "no NVIDIA driver, no GPU; runs use the CPU")
    name = f"NVIDIA {driver}" if driver else "NVIDIA, version unknown"
    return ok("driver", name) if facts.error else _with_wheel(name, driver, facts)


def _with_wheel(name: str, driver: str, facts: TorchFacts) -> Row:
    if not facts.built_for:
        return note(
            "driver",
            f"{name}, but this torch is a CPU build: the GPUs stay unused",
            f"Install one that can use them: {INSTALL}",
        )
    text = f"{name}, torch for {facts.built_for}"
    if newer := newer_driver(driver, facts.built_for.removeprefix("cuda ")):
        return problem(
            "driver",
            f"{text}: the driver is too old",
            f"Update it to {newer} or newer, or install a torch for an older CUDA.",
        )
    if facts.cuda_error:
        return problem("driver", f"{text}, but: {facts.cuda_error}", "Until then, start with --device cpu.")
    return ok("driver", text)


COMFORTABLE = 4096
LEAST = 256


def open_files_row(soft: int, hard: int) -> Row:
    """Whether enough files may be open: each tensor that a loader worker hands over is one while it is in use.

    Args:
        soft: the limit in force; negative: none.
        hard: how far a person may raise it; negative: any.
    """
    if soft < 0 or soft >= COMFORTABLE:
        return ok("open files", "no limit" if soft < 0 else str(soft))
    wanted = COMFORTABLE if hard < 0 else min(hard, COMFORTABLE)
    fix = f"ulimit -n {wanted}" if wanted > soft else "Ask an administrator to raise the hard limit."
    if soft < LEAST:
        return problem("open files", f"{soft} per process: too few for ranks and loader workers", fix)
    return note("open files", f"{soft} per process: many loader workers need more", fix)
