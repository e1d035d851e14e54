"""The environment of one rank: torchrun's contract, samebits's settings, and what other libraries need.

They need it to train one job over all ranks. Accelerate takes a CPU rank for a lone process unless ACCELERATE_USE_CPU
is set; Lightning Fabric's devices="auto" means one CPU process unless LT_DEVICES says how many (both read in their
sources: accelerate/state.py, lightning_fabric/connector.py). What the user set is kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from samebits.launcher.request import LaunchRequest
from samebits.machine.leftovers import MARKER
from samebits.protocol.environment import Position, RankEnvironment, RankSettings, encode
from samebits.protocol.late_settings import WORKSPACE, WORKSPACE_SIZES
from samebits.protocol.rank_task import RankTask

IMPORT_ONLY = {"OPENBLAS_NUM_THREADS": "1"}
"""Set while the nursery imports (NumPy's OpenBLAS would start threads, and fork keeps none), undone in the ranks."""
OUTER_LAUNCHERS = tuple(
    f"{prefix}_{name}"
    for prefix in ("OMPI_COMM_WORLD", "PMI", "MV2_COMM_WORLD")
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
)
"""An mpirun around the launcher counts launchers, not ranks; Accelerate would believe it before WORLD_SIZE."""

NCCL_DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
"""Off unless the user sets it: a C++ thread of torch's would ask the run's store once a second whether another rank wants a
dump, also while the interpreter ends; that store is written in Python (ProcessGroupNCCL.cpp, HeartbeatMonitor::runLoop)."""


def nursery_variables(threads: int, marker: str, present: Mapping[str, str]) -> dict[str, str]:
    """What the nursery's environment has in addition to the launcher's.

    libgomp and the hash seed are read once, before the first line of Python, so they are set here and not in the rank.
    """
    return {
        MARKER: marker,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONHASHSEED": present.get("PYTHONHASHSEED", "0"),
        **IMPORT_ONLY,
    }


def rank_task(
    request: LaunchRequest,
    rank: int,
    port: int,
    changed: Mapping[str, str | None],
    torch_variables: Mapping[str, str],
) -> RankTask:
    """Everything that a rank needs to know.

    Args:
        request: the run.
        rank: the rank, counted over all nodes.
        port: the run's own on 127.0.0.1, for a script that makes a store there.
        changed: what has changed in the launcher's environment since the nursery was started.
        torch_variables: what the nursery was started with so that torch would be loaded with it; nothing else wins over that.
    """
    return RankTask(
        rank=rank,
        script=str(request.entry.script) if request.entry.script is not None else "",
        module=request.entry.module or "",
        args=request.args_of(request.numbers.index(rank)),
        folder=str(request.entry.folder or Path.cwd()),
        run_folder=str(request.output.run_folder.absolute()),
        variables={**changed, **rank_variables(request, rank, port, os.environ), **torch_variables},
        calls_init=request.entry.calls_init,
        parcel=request.entry.call.parcel if request.entry.call is not None else "",
    )


def rank_variables(
    request: LaunchRequest,
    rank: int,
    port: int,
    present: Mapping[str, str],
) -> dict[str, str | None]:
    """The differences between the nursery's environment and the rank's; None removes a variable.

    Args:
        request: the run.
        rank: the rank, counted over all nodes.
        port: the run's own on 127.0.0.1, for a script that makes a store there.
        present: the launcher's environment: what the user set there is kept.
    """
    seat, local_rank = request.seat, request.numbers.index(rank)
    settings = RankSettings(
        run_folder=request.output.run_folder.absolute(),
        threads=request.placement.threads,
        threads_given=request.placement.threads_given,
        cores=request.placement.cores,
        lanes=request.computation.lanes,
        device=request.placement.device,
        device_given=request.placement.device_given,
        backend=request.computation.backend,
        form=request.computation.form,
        arithmetic=request.computation.arithmetic,
        evidence=request.computation.evidence,
        record=request.computation.record,
        saving=request.saving,
        check_every=request.computation.check_every,
        resume_nonfinite=request.recovery.resume_nonfinite,
        restart=request.restart,
        snapshots=request.snapshots,
        shrinks=request.recovery.shrinks,
        recover=request.recovery.recover,
        trace_steps=request.output.trace_steps,
        seat=request.seat,
        course=request.computation.course,
    )
    node, num_nodes = (seat.node, seat.num_nodes) if seat is not None else (0, 1)
    position = Position(rank, local_rank, request.world_size, request.placement.ranks, node, num_nodes)
    defaults = {name: value for name, value in _defaults(request).items() if name not in present}
    return {
        **dict.fromkeys(OUTER_LAUNCHERS),
        **{name: present.get(name) for name in IMPORT_ONLY},
        **defaults,
        "OMP_NUM_THREADS": str(request.placement.threads),
        **encode(RankEnvironment(position, settings), port, request.output.run_folder.name),
    }


def _defaults(request: LaunchRequest) -> dict[str, str]:
    interface = request.seat.interface if request.seat is not None else "lo"
    return {
        **({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}),
        WORKSPACE: WORKSPACE_SIZES,
        NCCL_DUMPS: "0",
        "LT_DEVICES": str(request.placement.ranks),
        "LT_ACCELERATOR": request.placement.device,
        **({"ACCELERATE_USE_CPU": "true"} if request.placement.device == "cpu" else {}),
    }
