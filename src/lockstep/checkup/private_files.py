"""Whether `verify` and `bench` can keep the files apart that their runs write."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lockstep.checkup.row import Row, note, ok
from lockstep.machine.private_view import ViewReport, make_view, remove_tree


def try_view() -> ViewReport:
    """Make a private view of the file system and let go of it; in a process with one thread."""
    base = Path(tempfile.mkdtemp(prefix="lockstep-doctor-")).resolve()
    try:
        (base / "layers").mkdir()
        report, view = make_view(base / "layers")
        if view is not None:
            view.close()
        return report
    finally:
        remove_tree(base)


def private_files_row(report: ViewReport) -> Row:
    """Views, or why not and what happens then."""
    if report.problem:
        return note(
            "private files",
            f"verify and bench can give their runs no private view of files: {report.problem}",
            "they run in copies of the folder; as root, or where users may make user namespaces, they keep all files apart",
        )
    if report.real:
        return note("private files", f"kept apart by verify and bench, but not {', '.join(report.real[:4])}", "")
    return ok("private files", "verify and bench keep apart what their runs write")
