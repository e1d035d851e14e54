"""Limits of the shell that a run meets: open files."""

from __future__ import annotations

from lockstep.checkup.row import Row, note, ok, problem

COMFORTABLE = 4096
LEAST = 256


def open_files_row(soft: int, hard: int) -> Row:
    """Each tensor that a loader worker hands over is an open file while it is in use.

    Args:
        soft: the limit in force; negative: none.
        hard: up to which a person may raise it; negative: any.
    """
    if soft < 0 or soft >= COMFORTABLE:
        return ok("open files", "no limit" if soft < 0 else str(soft))
    wanted = COMFORTABLE if hard < 0 else min(hard, COMFORTABLE)
    fix = f"ulimit -n {wanted}" if wanted > soft else "Ask who runs this machine to raise the hard limit."
    if soft < LEAST:
        return problem("open files", f"{soft} per process: too few for ranks and loader workers", fix)
    return note("open files", f"{soft} per process: many loader workers need more", fix)
