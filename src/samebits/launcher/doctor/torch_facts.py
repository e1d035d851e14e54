"""What torch knows about this machine, asked in an interpreter of its own: the command itself never imports torch.

`python -P -m samebits.launcher.doctor.torch_facts` prints the facts as one JSON object: before it tries samebits's process group and
again afterwards, so that a torch that ends the process there can be distinguished from one that cannot be imported.

Runs in: an interpreter of its own, but for `ask_torch` and `parse_facts`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.machine import torch_private
from samebits.machine.processes import interpreter
from samebits.protocol.records import plain, restored

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class TorchFacts:
    """What torch reported; all defaults if it could not be imported."""

    error: str = ""
    """The last line of what went wrong; empty when torch could be imported."""
    is_crashed: bool = False
    """Whether the interpreter ended without an answer, not by an exception."""
    version: str = ""
    numpy: str = ""
    built_for: str = ""
    """"cuda 12.8", "rocm 6.4", or empty for a CPU build."""
    cuda_error: str = ""
    """Why CUDA cannot be used, where torch was built for it."""
    devices: tuple[str, ...] = ()
    """Names of the devices that torch can use, in the order of their indices."""
    backends: tuple[str, ...] = ()
    """Of torch.distributed: gloo, nccl, mpi, ucc."""
    nccl: str = ""
    cpu: str = ""
    """The instruction set that torch's kernels use."""
    tasks: int = 1
    """Threads of the process after importing torch; the nursery forks only from one."""
    not_compiled: str = ""
    """Why samebits's compiled part cannot be used, with the fix; empty when it can."""
    instructions: str = ""
    """The instruction set that the compiled part adds with."""
    missing: tuple[str, ...] = ()
    """Private names that samebits uses and this torch lacks, each with what it is needed for."""
    misfit: str = ""
    """Why samebits's process group does not work with this torch, in one sentence; empty when it does."""


def ask_torch(variables: Mapping[str, str]) -> TorchFacts:
    """Start the interpreter and wait for its answer, at most two minutes; what goes wrong is in `error`."""
    command = [interpreter(), "-P", "-m", "samebits.launcher.doctor.torch_facts"]
    environment = {**variables, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return TorchFacts(error=f"importing torch took longer than {TIMEOUT_S:.0f} s")
    return parse_facts(done.stdout, done.stderr, done.returncode)


def parse_facts(out: str, err: str, code: int) -> TorchFacts:
    """The facts from the last line that the interpreter printed; libraries print too."""
    lines = out.strip().splitlines()
    try:
        return restored(TorchFacts, json.loads(lines[-1]))
    except (IndexError, ValueError):
        last = (err.strip().splitlines() or [f"the interpreter ended with exit code {code}"])[-1]
        return TorchFacts(error=last, is_crashed=True)


def _gather() -> TorchFacts:
    torch = importlib.import_module("torch")
    tasks = len(list(Path("/proc/self/task").iterdir()))
    distributed = importlib.import_module("torch.distributed")
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    devices, cuda_error = _devices(torch) if cuda or hip else ((), "")
    native = importlib.import_module("samebits.rank.transport.local.native")
    backends = tuple(name for name in ("gloo", "nccl", "mpi", "ucc") if _has(distributed, name))
    return TorchFacts(
        version=str(torch.__version__),
        numpy=_version("numpy"),
        built_for=f"cuda {cuda}" if cuda else f"rocm {hip}" if hip else "",
        cuda_error=cuda_error,
        devices=devices,
        backends=backends,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if "nccl" in backends else "",
        cpu=str(torch.backends.cpu.get_cpu_capability()),
        tasks=tasks,
        not_compiled=native.why_not(),
        instructions=native.compiled.variant() if native.available() else "",
        missing=tuple(map(str, torch_private.missing())),
        misfit="Trying it crashed the process.",
    )


def _try_group(facts: TorchFacts) -> TorchFacts:
    if "gloo" not in facts.backends:
        # Without gloo no ranks meet at all, which another row says.
        return replace(facts, misfit="")
    return replace(facts, misfit=importlib.import_module("samebits.rank.process_group.self_test").group_problem())


def _has(distributed: Any, name: str) -> bool:
    return bool(distributed.is_available() and getattr(distributed, f"is_{name}_available", lambda: False)())


def _devices(torch: Any) -> tuple[tuple[str, ...], str]:
    try:
        torch.cuda.init()
        return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())), ""
    except Exception as error:  # noqa: BLE001 - whatever the driver says is the answer
        return (), (str(error).strip() or type(error).__name__).splitlines()[0]


def _version(module: str) -> str:
    try:
        return str(importlib.import_module(module).__version__)
    except ImportError:
        return ""


def main() -> None:
    try:
        facts = _gather()
        _print(facts)
        facts = _try_group(facts)
    except Exception as error:  # noqa: BLE001 - an import may raise anything
        facts = TorchFacts(error=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    _print(facts)


def _print(facts: TorchFacts) -> None:
    sys.stdout.flush()
    os.write(1, json.dumps(plain(facts)).encode() + b"\n")


if __name__ == "__main__":
    main()
