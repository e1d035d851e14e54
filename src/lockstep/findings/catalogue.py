"""All findings, in the order of the index: what hangs, what ends, what is slow, what is wrong."""

from __future__ import annotations

from lockstep.findings import (
    busy_rank,
    crash,
    crossed_groups,
    crowded_cores,
    early_leaver,
    full_disk,
    killed_for_memory,
    mismatched_collective,
    missing_rank,
    nan_loss,
    replicas_apart,
    shared_core,
    shared_device,
    stalled_in_data,
    stalled_in_script,
    starved_loader,
    stopped_process,
    straggler,
    wrong_interface,
)
from lockstep.findings.finding import Finding

FINDINGS: dict[str, Finding] = {
    module.FINDING.name: module.FINDING
    for module in (
        missing_rank,
        early_leaver,
        stalled_in_data,
        stalled_in_script,
        stopped_process,
        busy_rank,
        mismatched_collective,
        crossed_groups,
        killed_for_memory,
        crash,
        straggler,
        shared_core,
        crowded_cores,
        starved_loader,
        shared_device,
        full_disk,
        wrong_interface,
        nan_loss,
        replicas_apart,
    )
}
"""By name."""
