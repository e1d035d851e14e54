"""Tensors that a lane uses although an earlier lane made them, as `lockstep.run.lane_watch` saw them on one rank."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lockstep.layout.run_folder import RunFolder


@dataclass(frozen=True)
class Carried:
    """The first one on which a loss depends."""

    shape: tuple[int, ...]
    dtype: str
    made_at: str
    """`file:line` of the script."""
    used_at: str
    name: str = ""
    """The variable or attribute that holds it, where one was found."""

    @property
    def sentence(self) -> str:
        """What happens, without a capital letter and a full stop."""
        size = " x ".join(map(str, self.shape)) or "a single number"
        called = f" `{self.name}`" if self.name else ""
        return (
            f"a tensor{called} ({self.dtype}, {size}) that one lane made (line {self.made_at}) is used by the next lane (line "
            f"{self.used_at})"
        )


def read_carried(folder: RunFolder) -> Carried | None:
    """What a run with evidence `watch` on one rank wrote; None when its lanes hand nothing on."""
    path = folder.carried(0)
    if not path.exists():
        return None
    told = json.loads(path.read_text())
    return Carried(**{**told, "shape": tuple(told["shape"])})
