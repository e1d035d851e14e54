"""What `verify --interrupt` found, as plain values: shown by `show_continued`, printed as JSON by `--json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from samebits.verify.comparison import END, Row
from samebits.verify.forgotten import Forgotten
from samebits.verify.report import (
    BAD,
    EXPECTED,
    cell_text,
    difference_lines,
    print_folder,
    print_lines,
    print_missing,
    print_verdict,
    show_failed,
)
from samebits.verify.result import Explained, Failed, Run, difference_as_json, finite, row_as_json


@dataclass
class Continued:
    """Everything that there is to report about a run that was stopped and resumed. Filled in as the runs end."""

    title: str
    after: int
    """The step after which it should stop."""
    ranks: tuple[int, int]
    """Until the stop, and after it."""
    device: str
    steps_wanted: int
    """Steps after the stop."""
    stopped_after: int = 0
    """The step after which it stopped: the first one from `after` on where a state is saved; 0: it did not come there."""
    lanes: int = 0
    threads: int = 0
    runs: list[Run] = field(default_factory=list)
    """The undisturbed one, and the one that resumed."""
    rows: list[Row] = field(default_factory=list)
    difference: Explained | None = None
    forgotten: Forgotten = field(default_factory=Forgotten)
    failed: Failed | None = None
    folder: str = ""
    """Where the runs are kept; empty when they were removed."""
    kept: str = ""
    """The same as a sentence."""

    @property
    def num_steps(self) -> int:
        """Steps after the stop that both runs have recorded."""
        return max(min((run.steps for run in self.runs), default=0) - self.stopped_after, 0)

    @property
    def num_items(self) -> int:
        """The number of different tensors and values in each step."""
        return sum(row.num_items for row in self.rows if row.in_each_step)

    @property
    def num_items_at_end(self) -> int:
        """The number of different tensors and values after the last step."""
        return sum(row.num_items for row in self.rows if row.key == END)

    @property
    def same_bits(self) -> bool:
        """Whether the run resumed with the bits of the undisturbed one."""
        return self.failed is None and bool(self.runs) and self.difference is None

    @property
    def exit_code(self) -> int:
        """0 only when everything was compared and is the same."""
        if self.failed is not None:
            return self.failed.exit_code
        return 0 if self.same_bits else 1

    def not_proved(self) -> list[str]:
        """What this proof does not cover, in plain words."""
        missed = next((run for run in self.runs if not run.reached_end), None)
        return [
            f"a stop after another step than {self.stopped_after}",
            f"steps after step {self.stopped_after + self.num_steps}",
            *([f"the end of the script, which it did not reach: {missed.why_not}"] if missed is not None else []),
            "what is neither logged nor in an object with a state_dict: printed text, files, variables",
        ]

    def as_json(self) -> dict[str, Any]:
        """One object of strings, finite numbers, lists and objects; a number that is not finite is null."""
        record: dict[str, Any] = finite(
            {
                "script": self.title,
                "proved": self.same_bits,
                "same_bits": self.same_bits,
                "exit_code": self.exit_code,
                "interrupt": self.after,
                "stopped_after": self.stopped_after or None,
                "ranks": list(self.ranks),
                "lanes": self.lanes,
                "threads": self.threads,
                "device": self.device,
                "steps": self.num_steps,
                "steps_wanted": self.steps_wanted,
                "items": self.num_items,
                "items_at_end": self.num_items_at_end,
                "runs": [asdict(run) for run in self.runs],
                "rows": [row_as_json(row) for row in self.rows],
                "difference": difference_as_json(self.difference) if self.difference is not None else None,
                "forgotten": asdict(self.forgotten),
                "failed": asdict(self.failed) if self.failed is not None else None,
                "not_proved": self.not_proved(),
                "folder": self.folder or None,
            }
        )
        return record


def show_continued(
    found: Continued, console: Console, *, is_detailed: bool = False, seconds: float | None = None
) -> None:
    """Print everything, as `show` does."""
    if found.failed is not None:
        show_failed(found.failed, console)
    else:
        print_verdict(_same(found) if found.same_bits else "", console, seconds)
        if is_detailed or not found.same_bits:
            console.print(continued_table(found))
            console.print()
        print_lines(continued_sentences(found), console)
        print_missing(found.not_proved(), console, is_detailed=is_detailed)
    print_folder(found.kept, console)


def continued_table(found: Continued) -> Table:
    """A row for each kind of item; the undisturbed run and the one that resumed."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    drawn.add_column("what", no_wrap=True)
    for header in ("undisturbed", f"stopped after {found.stopped_after}"):
        drawn.add_column(header)
    for row in found.rows:
        drawn.add_row(row.title, *(cell_text(row, number, BAD) for number in range(len(row.cells))))
    return drawn


def continued_sentences(found: Continued) -> Iterator[tuple[str, str]]:
    """The lines below the table, each with its style."""
    if found.stopped_after != found.after:
        yield (
            f"No state is saved after step {found.after}, so the run was stopped after step {found.stopped_after}.",
            "",
        )
    if found.same_bits:
        if advice := found.forgotten.advice():
            yield f"Nothing that was compared depends on it, but {advice}", EXPECTED
    elif found.difference is not None:
        yield from difference_lines(found.difference)
        if found.ranks[0] != found.ranks[1]:
            numbers = ",".join(map(str, found.ranks))
            yield f"`samebits verify --ranks {numbers}` shows whether the bits depend on the ranks without a stop.", ""


def _same(found: Continued) -> str:
    lanes = f"{found.lanes} lane{'s' * (found.lanes != 1)}"
    threads = f"{found.threads} thread{'s' * (found.threads != 1)} each"
    steps = f"{found.num_steps} step{'s' * (found.num_steps != 1)}"
    first, second = (f"{count} rank{'s' * (count != 1)}" for count in found.ranks)
    where = first if first == second else f"{first}, resumed on {second}"
    end = f", {found.num_items_at_end} at the end" if found.num_items_at_end else ""
    return (
        f"after a stop at step {found.stopped_after}, on {where}: {steps}, {found.num_items} items in each{end}; "
        f"{lanes}, {threads}"
    )
