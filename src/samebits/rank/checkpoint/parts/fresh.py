"""`run --from RUN --fresh lr`: options of the script that count in a branch, in the place of those of its parent's state.

An option of an optimizer is what its groups had when the state was read. A rate that a scheduler sets is the scheduler's
own, so there the script's rate is the one that it began with: the schedule goes on from its place, as a multiple of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

from samebits.rank.checkpoint.parts.optimizers import optimizers_of
from samebits.rank.checkpoint.parts.part import CommandMistake, Saved
from samebits.rank.checkpoint.parts.schedulers import schedulers_of
from samebits.rank.position.made_schedulers import inside
from samebits.rank.position.preparations import OtherOption, label_in, may_be_fresh
from samebits.rank.position.run_state import RunState

RATE, FIRST_RATE = "lr", "initial_lr"
MULTIPLES = (
    *(LambdaLR, StepLR, MultiStepLR, ExponentialLR, MultiplicativeLR, ConstantLR, LinearLR, PolynomialLR),
    *(CosineAnnealingLR, SequentialLR, ChainedScheduler),
)
"""Schedulers whose rates are multiples of the one that they began with; the cosine only down to 0."""
CYCLES = ("momentum", "betas")
"""What OneCycleLR and CyclicLR set besides rates."""


def changed(others: Sequence[OtherOption], *, may_take: bool) -> CommandMistake:
    """The error where a branch would go on with options that the script no longer has.

    Args:
        others: these.
        may_take: whether --fresh can take them from the script: the state is the parent's.
    """
    made = "; ".join(f"{one.key}={one.own!r} of {one.of}, and the state has {one.theirs!r}" for one in others[:3])
    problem = f"The script makes {made}{'; …' * (len(others) > 3)}."
    if not may_take:
        return CommandMistake(problem, "Give the script the old value, or begin another branch under another --name.")
    if not all(may_be_fresh(one.label) for one in others):
        return CommandMistake(
            problem, "Give the script the old value: a scheduler goes on from its place with its options."
        )
    names = ",".join(dict.fromkeys(one.key for one in others))
    return CommandMistake(problem, f"Add --fresh {names} to take the script's, or give the script the old value.")


class FreshOptions:
    """Those that `names` name, as the script has made them by now; `load` puts them back over a state.

    Args:
        run: the branch.
        saved: the state of its parent.
        names: of options of optimizers, and of values of `run.state`.
    """

    def __init__(self, run: RunState, saved: Saved, names: Sequence[str]) -> None:
        self._run, self._saved, self._names = run, saved, names
        self._optimizers = optimizers_of(run.loop_state)
        self._made = [
            [{name: _kept(group[name]) for name in (*names, FIRST_RATE) if name in group} for group in one.param_groups]
            for _, one in self._optimizers
        ]

    def check(self, *, awaits: bool) -> None:
        """Raise `CommandMistake` for names that nothing has, and for what cannot be done.

        Args:
            awaits: whether the state has schedulers that this start has not made yet.
        """
        known = {key for _, one in self._optimizers for group in one.param_groups for key in group if key != "params"}
        known |= vars(self._run.loop_state.values).keys()
        if unknown := [name for name in self._names if name not in known]:
            raise CommandMistake(
                f"--fresh names {unknown[0]}, and neither an optimizer of the script nor run.state has that.",
                "Name options of optimizers (lr, weight_decay) or values of run.state.",
            )
        if self._saved.waits:
            raise CommandMistake(
                "--fresh cannot be used where the parent had prepared things in the middle of its loop.",
                "Leave it out, and set the option in the loop: `optimizer.param_groups[0]['lr'] = 0.01`.",
            )
        for number, (label, optimizer) in enumerate(self._optimizers):
            theirs = [*schedulers_with(self._run, optimizer)]
            self._check_cycles(label, theirs)
            if RATE in self._names and self._is_other_rate(number, label):
                _check_rates(label, theirs, awaits=awaits, is_zero=0.0 in self._first_rates(label))

    def _check_cycles(self, label: str, theirs: Sequence[LRScheduler]) -> None:
        for name in self._names:
            if name in CYCLES and (cycling := [one for one in theirs if isinstance(one, (OneCycleLR, CyclicLR))]):
                raise CommandMistake(
                    f"--fresh names {name}, which {type(cycling[0]).__name__} of {label} sets in each step.",
                    f"Leave {name} out of --fresh.",
                )

    def _is_other_rate(self, number: int, label: str) -> bool:
        """Whether a scheduler of the parent has begun with other rates than the script gives it now."""
        now = [_number(one.get(FIRST_RATE)) for one in self._made[number]]
        return now != self._first_rates(label) and None not in now

    def _first_rates(self, label: str) -> list[Any]:
        """The rates with which schedulers of the parent began, by group; None without one."""
        groups = self._saved.documents[label_in(self._saved.documents, label)]["groups"]
        options = [self._saved.decode(group["options"].get(FIRST_RATE)) for group in groups]
        return [_number(one) for one in options]

    def load(self) -> None:
        """Let the script's own options count. Call it whenever the state's optimizers and schedulers have been loaded."""
        for number, (label, optimizer) in enumerate(self._optimizers):
            before = self._first_rates(label)
            for group, made, first in zip(optimizer.param_groups, self._made[number], before, strict=False):
                for name in self._names:
                    if name in made and not (name == RATE and FIRST_RATE in made and first is not None):
                        _set(group, name, made[name])
                if RATE in self._names and FIRST_RATE in made and first is not None:
                    self._carry_rate(group, _number(made[FIRST_RATE]), first)
            if RATE in self._names:
                rates = [_number(group.get(FIRST_RATE, group[RATE])) for group in optimizer.param_groups]
                for one in schedulers_with(self._run, optimizer):
                    now = {"base_lrs": rates, "_last_lr": [_kept(group[RATE]) for group in optimizer.param_groups]}
                    vars(one).update({name: [*value] for name, value in now.items() if name in vars(one)})

    @staticmethod
    def _carry_rate(group: dict[str, Any], now: float, before: float) -> None:
        """The schedule's multiple of the first rate stays; the first rate is the script's."""
        if now != before:
            _set(group, RATE, _number(group[RATE]) * (now / before))
            group[FIRST_RATE] = now


def schedulers_with(run: RunState, optimizer: Optimizer) -> Iterator[LRScheduler]:
    """All that this start has made for `optimizer`, and what they consist of."""
    loop_state = run.loop_state
    found = [one for _, one in schedulers_of(loop_state)]
    found += [*loop_state.prepared.tracked.values(), *(one.here for one in loop_state.schedulers.here())]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if isinstance(one, LRScheduler) and id(one) not in seen:
            seen.add(id(one))
            found += inside(one)
            # A library's own optimizer around a prepared one has the same groups.
            if getattr(getattr(one, "optimizer", None), "param_groups", None) is optimizer.param_groups:
                yield one


def _check_rates(label: str, theirs: Sequence[LRScheduler], *, awaits: bool, is_zero: bool) -> None:
    """Raise `CommandMistake` where a schedule cannot go on from another first rate."""
    fix = "Give the script the old rate, and set rates in the loop; or begin anew with the weights: samebits.load_weights."
    if awaits:
        raise CommandMistake(
            f"--fresh lr cannot be carried into a scheduler of {label} that is made in the loop.",
            "Make it before the first run.epochs, or give the script the old rate.",
        )
    if is_zero:
        raise CommandMistake(
            f"--fresh lr: a scheduler of {label} began with the rate 0, of which nothing is a multiple.", fix
        )
    for one in theirs:
        is_multiple = type(one) in MULTIPLES and not getattr(one, "eta_min", 0)
        if not is_multiple:
            how = (
                "ends above 0"
                if isinstance(one, CosineAnnealingLR)
                else "sets rates that are no multiples of the first one"
            )
            raise CommandMistake(
                f"--fresh lr cannot be carried into the {type(one).__name__} of {label}, which {how}.", fix
            )
    if not theirs:
        raise CommandMistake(
            f"--fresh lr: the rates of {label} follow from a scheduler that samebits does not know.", fix
        )


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    """In place where it is a tensor, because a compiled step may hold it."""
    if isinstance(group.get(name), Tensor):
        group[name].fill_(value) if not isinstance(value, Tensor) else group[name].copy_(value)
    else:
        group[name] = _kept(value)


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) else value
