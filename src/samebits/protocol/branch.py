"""`run --from exp1@1200`: a run that begins with a state of another one. What of that is said, stored and exchanged. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError
from samebits.machine.visible import visible
from samebits.protocol.records import plain, restored
from samebits.protocol.skipped_steps import NONE, SkippedSteps

NEWEST = "newest"
PARENT = "parent.json"
"""In the folder of a named run: the run and step from which it was branched."""
_STEP = re.compile(r"[0-9]{1,15}")
_NAME = re.compile(r"[^\W\d]\w{0,99}")


@dataclass(frozen=True)
class Parent:
    """The run from whose state another one was branched."""

    run: str
    """Its name."""
    step: int
    """After which the state was saved."""

    @property
    def text(self) -> str:
        """`exp1, after step 1200`."""
        return f"{visible(self.run)}, after step {self.step}"

    @classmethod
    def read(cls, record: Any) -> Parent | None:
        """What a file of a run's folder says, which may be anybody's; None where it says nothing of the kind."""
        try:
            found = restored(cls, record) if isinstance(record, Mapping) else None
        except ValueError:
            return None
        return found if found is not None and found.run and found.step >= 0 else None


@dataclass(frozen=True)
class Course:
    """What the command line says of the steps of a run, besides its script."""

    parent: Parent | None = None
    """The run from whose state it was branched; None where it began by itself."""
    fresh: tuple[str, ...] = ()
    """Options and values for which the script's own count, and not those of the parent's state."""
    skipped: SkippedSteps = NONE
    """Steps whose samples are passed over."""

    def as_json(self) -> dict[str, Any]:
        """For plan.json and a record: `parent` and `skipped`, where there is something to say."""
        parent = {"parent": {**plain(self.parent), "fresh": [*self.fresh]}} if self.parent is not None else {}
        return parent | ({"skipped": [[*one] for one in self.skipped.ranges]} if self.skipped else {})

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Course:
        """The inverse of `as_json`, of a file that may be anybody's. Raises ValueError for what samebits does not write."""
        parent, fresh = record.get("parent"), []
        if isinstance(parent, Mapping):
            fresh, parent = parent.get("fresh", []), {key: parent[key] for key in parent if key != "fresh"}
        if not isinstance(fresh, list) or not all(isinstance(one, str) for one in fresh):
            raise ValueError(record)
        return cls(Parent.read(parent), tuple(fresh), SkippedSteps.read(record.get("skipped", [])))


@dataclass(frozen=True)
class Source:
    """`RUN@STEP`, as it was given."""

    word: str
    """The run's name, or the path of its folder."""
    step: int | None = None
    """None: the newest."""

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read `exp1`, `exp1@newest` or `exp1@1200`; a name may have an @ too.

        Raises:
            UsageError: when there is no run in it.
        """
        word, at, step = text.rpartition("@")
        if not at or not (step == NEWEST or _STEP.fullmatch(step)):
            word, step = text, NEWEST
        if not word:
            raise UsageError(f"--from {visible(repr(text))} names no run.", "Write --from RUN@STEP: --from exp1@1200.")
        return cls(word, None if step == NEWEST else int(step))


def fresh_names(text: str | None) -> tuple[str, ...]:
    """The names in `lr,weight_decay`.

    Raises:
        UsageError: for what are no names.
    """
    if text is None:
        return ()
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if strange := [name for name in names if not _NAME.fullmatch(name)]:
        raise UsageError(
            f"--fresh {visible(repr(strange[0]))} cannot be the name of an option.",
            "Name options of an optimizer, or values of run.state, with commas: --fresh lr,weight_decay.",
        )
    return names
