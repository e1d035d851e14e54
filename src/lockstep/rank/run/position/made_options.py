"""The options of optimizers and schedulers, and the first values of `run.state`, as the script made them.

A state brings back those of its run, so a rate that somebody has edited in the script since has no effect; that is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

DERIVED = frozenset(
    {
        "initial_lr",
        "params",
        "base_lrs",
        "last_epoch",
        "_last_lr",
        "_step_count",
        "_get_lr_called_within_step",
        "_is_initial",
    }
)
"""What follows from other options, or from the steps made."""

VALUES = "run.state"
"""The label of its first values."""
Groups = list[dict[str, Any]]
"""Plain values by name, of each group of an optimizer; of a scheduler there is one."""


class MadeOptions:
    """Those of one run, by label: `optimizer1`."""

    def __init__(self) -> None:
        self.by_label: dict[str, Groups] = {}

    def add(self, label: str, thing: Any) -> None:
        """An optimizer or scheduler was prepared."""
        self.by_label[label] = _options_of(thing)

    def add_value(self, name: str, value: Any) -> None:
        """`run.state` got a first value."""
        if (plain := _plain(value)) is not None:
            self.by_label.setdefault(VALUES, [{}])[0][name] = plain

    def overridden(self, saved: Any) -> list[str]:
        """What this start made with other options than the run that was saved did.

        Args:
            saved: its `by_label`.

        Raises:
            ValueError: for what lockstep does not write.
        """
        found = []
        for label, groups in saved.items():
            mine = self.by_label.get(label, [])
            if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
                raise ValueError(groups)
            for number, (own, theirs) in enumerate(zip(mine, groups, strict=False)):
                of = f"{label} (group {number})" if len(mine) > 1 else label
                # [Note: a switch that is missing]
                # None is not written, and torch's switches (`fused`, `foreach`) begin with it. Other values are
                # missing on one side where another release of torch has one option more.
                found += [
                    f"{key}={own.get(key)!r} of {of}, which was {theirs.get(key)!r}"
                    for key in sorted(own.keys() | theirs.keys())
                    if repr(own.get(key)) != repr(theirs.get(key))
                    and (
                        (key in own and key in theirs) or (label != VALUES and True in (own.get(key), theirs.get(key)))
                    )
                ]
        return found

    def keep(self, saved: Mapping[str, Groups]) -> None:
        """Those of the run that was saved count; let states say so from here on."""
        self.by_label.update({label: groups for label, groups in saved.items() if label in self.by_label})


def _options_of(thing: Any) -> Groups:
    """Plain values that an optimizer's groups, or a scheduler, were made with."""
    groups = thing.param_groups if hasattr(thing, "param_groups") else [thing.state_dict()]
    return [
        {key: plain for key, value in group.items() if key not in DERIVED and (plain := _plain(value)) is not None}
        for group in groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):  # the milestones of MultiStepLR
        value = sorted(value.elements())
    if isinstance(value, (list, tuple)):
        return [*value] if {bool, int, float, str}.issuperset(map(type, value)) else None
    return value if type(value) in (bool, int, float, str) else None
