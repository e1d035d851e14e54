"""What can be measured: each part by name, with what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from benchmarks.parts.launch import measure_first_step, measure_launch
from benchmarks.parts.lost import measure_loss
from benchmarks.parts.memory import measure_memory
from benchmarks.parts.pipeline import measure_pipeline
from benchmarks.parts.portable import ALL as COSTS
from benchmarks.parts.portable import MOST, measure_cost
from benchmarks.parts.started import measure_started
from benchmarks.parts.states import SIZES as SAVED
from benchmarks.parts.states import measure_saving
from benchmarks.parts.steps import measure_alone, measure_ddp, measure_steps
from benchmarks.parts.transport import measure_transport
from benchmarks.summary import Line
from benchmarks.workloads import WORKLOADS, WORKS

LARGE = ("mlp", "gpt", "cnn")
"""The models of parts that do not train all."""


@dataclass(frozen=True)
class Measurement:
    """One thing to measure, when it is its turn."""

    label: str
    """What progress says while it runs."""
    measure: Callable[[], list[Line]]


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    rounds: int
    models: tuple[str, ...] = ()
    """Only these, of the parts that train several; empty: each part's own."""

    def chosen(self, usual: Iterable[str]) -> list[str]:
        """The models of a part, in the order in which they are usually measured."""
        return [name for name in (WORKLOADS if self.models else usual) if name in self.models or not self.models]


Plan = Callable[[Amount], list[Measurement]]


@dataclass(frozen=True)
class Part:
    """One word of the command line."""

    what: str
    plan: Plan
    """What to measure, in order."""
    compiled: bool = True
    """Whether it needs the compiled part of samebits."""
    has_models: bool = False
    """Whether it trains several, of which `--models` chooses."""


def _of_models(name: str, measure: Callable[[str, int], list[Line]], usual: Iterable[str]) -> Plan:
    """A measurement for each model."""
    return lambda amount: [
        Measurement(f"{name}: {WORKLOADS[model].what}", partial(measure, model, amount.rounds))
        for model in amount.chosen(usual)
    ]


def _steps(amount: Amount) -> list[Measurement]:
    return [
        Measurement(f"steps, {strategy}: {WORKLOADS[name].what}", partial(measure_steps, name, strategy, amount.rounds))
        for name in amount.chosen(WORKLOADS)
        for strategy in ("ddp", "zero1")
    ]


def _started(amount: Amount) -> list[Measurement]:
    rounds = max(amount.rounds // 3, 1)  # programs, not steps
    return [
        Measurement(f"started, {n} ranks: {WORKLOADS[name].what}", partial(measure_started, name, n, rounds))
        for name in amount.chosen(WORKLOADS)
        for n in (1, 2)
    ]


def _transport(amount: Amount) -> list[Measurement]:
    return [Measurement(f"transport, {n} ranks", partial(measure_transport, n, amount.rounds)) for n in (2, 4, 8)]


def _launch(amount: Amount) -> list[Measurement]:
    launches = [Measurement(f"launch, {n} ranks", partial(measure_launch, n, amount.rounds)) for n in (2, 8)]
    rounds = max(amount.rounds // 6, 2)
    return launches + [Measurement(f"start: {model}", partial(measure_first_step, model, rounds)) for model in WORKS]


def _lost(amount: Amount) -> list[Measurement]:
    return [Measurement(f"lost: {model}", partial(measure_loss, model, max(amount.rounds // 6, 2))) for model in WORKS]


def _pipeline(amount: Amount) -> list[Measurement]:
    return [Measurement(f"pipeline, {m} micro-batches", partial(measure_pipeline, m, amount.rounds)) for m in (8, 16)]


def _save(amount: Amount) -> list[Measurement]:
    return [
        Measurement(f"save, {size} M parameters, ranks: {ranks}", partial(measure_saving, size, ranks, amount.rounds))
        for size, ranks in SAVED
    ]


def _portable(amount: Amount) -> list[Measurement]:
    return [
        Measurement(f"portable: {COSTS[name].what}", partial(measure_cost, name, amount.rounds))
        for name in MOST
        if not amount.models or name in amount.models
    ]


def _memory(_: Amount) -> list[Measurement]:
    return [Measurement("memory", measure_memory)]


PARTS = {
    "transport": Part("collectives beside Gloo and a copy (C1-C4, C9)", _transport),
    "ddp": Part(
        "a DDP script with our backend instead of Gloo (C5)", _of_models("ddp", measure_ddp, LARGE), has_models=True
    ),
    "steps": Part("our engine beside the best-tuned DDP (C6)", _steps, compiled=False, has_models=True),
    "alone": Part(
        "one rank beside the bare loop (C8)", _of_models("alone", measure_alone, LARGE), compiled=False, has_models=True
    ),
    "started": Part("the same as people start them, one program at a time", _started, compiled=False, has_models=True),
    "launch": Part("launch to the first all_reduce, and to the end of a first step (C10, D5)", _launch, compiled=False),
    "lost": Part("a killed rank, until the step that lost it is done (C11, D3)", _lost),
    "pipeline": Part("a pipeline beside the naive split (C12)", _pipeline, compiled=False),
    "portable": Part("what numerics=portable costs beside exact (P1)", _portable, has_models=True),
    "memory": Part("memory of all ranks (C14)", _memory, compiled=False),
    "save": Part("how long a step stands still for a state", _save, compiled=False),
}
