"""`stages.json` in the run folder: which layers each stage had, how long they took, and the last step's timeline."""

from __future__ import annotations

import json

from lockstep.run.kept_file import keep
from lockstep.run.parts import Parts


def write_stage_report(parts: Parts) -> None:
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
