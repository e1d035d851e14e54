"""Under which conditions a run is made, for its record: what its bits depend on, without paths, hosts and users.

Runs in: the main thread of rank 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

from samebits.machine.cores import model_and_instructions
from samebits.machine.regular_file import read_regular
from samebits.protocol.installation import VERSION, installed
from samebits.protocol.script_files import running_script
from samebits.rank.init.numerics import fingerprint, flags
from samebits.rank.position.run_state import RunState

ENVIRONMENT = (
    *("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "NVIDIA_TF32_OVERRIDE", "TORCH_COMPILE_DISABLE"),
)
"""Variables that change the kernels that are taken, besides those of `flags`."""
OF_RANKS = frozenset(("OMP_NUM_THREADS", "dynamo.automatic_dynamic_shapes"))
"""Flags that follow the number of ranks, or what is imported by now, and change no bits."""
FILES = "files"
MOST_FILES = 2_000


def conditions_of(run: RunState, told: Mapping[str, Any]) -> dict[str, Any]:
    """All of them now.

    Args:
        run: whose.
        told: what the command knows: script, arguments and commit.
    """
    config = run.config
    arithmetic = config.arithmetic
    is_portable = arithmetic.numerics == "portable"
    machine = {} if is_portable else _machine()
    return {
        "samebits": VERSION,
        **fingerprint(config.device, config.threads, arithmetic.numerics),
        **machine,
        "lanes": config.placement.num_lanes,
        "seed": run.components.streams.seed,
        "precision": arithmetic.precision,
        "numerics": arithmetic.numerics,
        "allow": list(arithmetic.allow),
        "flags": {name: value for name, value in flags().items() if name not in OF_RANKS},
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "packages": installed(),
        **told,
        FILES: files_of_script({}),
    }


def _machine() -> dict[str, str]:
    """Other kernels have other bits; under portable they are the package's own."""
    build = hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16]
    return {"build": build, "glibc": "-".join(platform.libc_ver()), "cpu_model": model_and_instructions()[0]}


def files_of_script(known: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each source file and extension of the script's own that is imported by now, by its path from the script's folder.

    One that is `known` is not read again: what runs is what it was then.
    """
    script, found = running_script(), dict[str, str]()
    for module in list(sys.modules.values()):
        # Not getattr: what stands for a module may import something, or fail, where it is asked.
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str) or len(found) >= MOST_FILES:
            continue
        path = os.path.abspath(file)  # noqa: PTH100 - as `running_script` names files
        if not script.has(path):
            continue
        name = os.path.relpath(path, script.folders[0])
        # A name with a NUL is a ValueError.
        with suppress(OSError, ValueError):
            found[name] = known.get(name) or hashlib.sha256(read_regular(path)).hexdigest()
    return dict(sorted(found.items()))


def in_force(found: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Whether the recorded conditions still hold: a file that is not imported yet may be later."""
    files, then = found[FILES], recorded.get(FILES, {})
    rest = [{key: value for key, value in one.items() if key != FILES} for one in (found, recorded)]
    return json.dumps(rest[0]) == json.dumps(rest[1]) and files.items() <= then.items()
