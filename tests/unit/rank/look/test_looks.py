"""What a script keeps itself is named, whatever way it keeps it; what every state holds is not."""

from __future__ import annotations

import io
import itertools
import linecache
import sqlite3
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

import samebits
from samebits.rank.checks import labels
from samebits.rank.look import looks as when
from samebits.rank.look import observation
from samebits.rank.look.looks import Looks
from samebits.rank.look.observation import Prepared, look
from samebits.rank.look.reading import Reader
from samebits.rank.position.run_state import RunState
from tests.scripts.idioms import NAMED, SAVED, script
from tests.support.promises import promise

EXAMPLES = Path(__file__).parents[4] / "examples"


class Seen(BaseException):
    """The looks are over."""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Looks]]:
    """Runs a script up to the end of its third step, in this process."""
    found: list[Looks] = []

    def over(run: RunState) -> None:
        found.append(run.loop_state.looks)
        raise Seen

    def run(source: str) -> Looks:
        file = tmp_path / "train.py"
        file.write_text(source)
        linecache.checkcache()
        module = types.ModuleType("__main__")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setattr(sys, "argv", [str(file)])
        with pytest.raises(Seen):
            exec(compile(source, str(file), "exec"), vars(module))
        return found[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(labels, "say_names", over)
    # A test session has other modules than a script, and the machine other things to do.
    monkeypatch.setattr(observation, "LONGEST_S", 9.0)
    monkeypatch.setattr(when, "MOST_S", 99.0)
    monkeypatch.setattr(when, "VERDICT_S", 9.0)
    # Not those of what runs the tests.
    frames = observation.script_frames
    monkeypatch.setattr(
        observation,
        "script_frames",
        lambda: [one for one in frames() if one.f_code.co_filename.startswith(str(tmp_path))],
    )
    yield run
    samebits.finish()


NOT_SEEN = {
    "an attribute of sys": "modules of libraries are not looked at",
    "an attribute of torch": "modules of libraries are not looked at",
    "os.environ": "modules of libraries are not looked at",
    "decimal's context": "it belongs to no variable",
    "decimal's context, kept": "it is C's",
    "an object with __getattr__": "its value is made where it is read",
    "a descriptor": "its value is kept by the class of an attribute",
    "the best so far": "it does not change in the first steps",
    "an optimizer made anew": "the check of unprepared optimizers names it",
}
"""What a look does not see of what changes, and why."""
ALSO_NAMED = {
    "a sum that is only printed": "it is assigned together with something else",
    "a flag that decides whether to print": "the source is not followed into the branch",
}


@promise(
    "never-stuck-nothing-left-behind",
    "What no state holds is named behind the third step, at the restart and beside the final bits, with"
    " its line and what to write, and blocks no snapshot; what every state holds is not named",
    also=[
        "test_what_every_state_holds_is_not_named",
        "test_a_script_that_carries_a_variable_goes_on_and_says_without_what",
        "test_what_changes_on_another_rank_alone_is_said_by_the_first",
        "test_what_the_trainer_calls_and_no_state_holds_is_named_before_a_kill_and_behind_it",
    ],
)
@pytest.mark.parametrize("idiom", NAMED)
@pytest.mark.filterwarnings("ignore")
def test_what_no_state_holds_is_named(idiom: str, names: Callable[[str], Looks]) -> None:
    looks = names(script(*NAMED[idiom]))
    assert bool(looks.carried or looks.unread) is (idiom not in NOT_SEEN)


@pytest.mark.parametrize("idiom", SAVED)
@pytest.mark.filterwarnings("ignore")
def test_what_every_state_holds_is_not_named(idiom: str, names: Callable[[str], Looks]) -> None:
    looks = names(script(*SAVED[idiom]))
    assert bool(looks.carried or looks.handed_on or looks.unread) is (idiom in ALSO_NAMED)


@pytest.mark.parametrize("example", ["quickstart.py", "digits.py", "recipes/mixup.py", "recipes/averaged_weights.py"])
@pytest.mark.filterwarnings("ignore")
def test_nothing_of_the_examples_is_named(example: str, names: Callable[[str], Looks]) -> None:
    pytest.importorskip("sklearn")
    looks = names((EXAMPLES / example).read_text())
    assert (looks.carried, looks.handed_on, looks.unread) == ([], [], [])


LOOP = script("{before}", "{turn}").replace("for step in run.steps(loader)", "{loop}").replace("factor * ", "")


@pytest.mark.parametrize(
    ("loop", "turn", "named"),
    [
        ("for n, step in enumerate(run.steps(loader))", "if n > 3: break", "enumerate"),
        ("for n, step in enumerate(run.steps(loader))", "print(n)", ""),
        ("for step, n in zip(run.steps(loader), range(99))", "pass", "zip"),
        ("for step in itertools.islice(run.steps(loader), 9)", "pass", "islice"),
        ("for step in run.steps(loader)", "pass", ""),
    ],
)
def test_what_counts_steps_from_outside_is_named(
    loop: str, turn: str, named: str, names: Callable[[str], Looks]
) -> None:
    found = [one.name for one in names(LOOP.format(before="", turn=turn, loop=loop)).carried]
    assert found == ([f"the count of {named}"] if named else [])


def test_a_name_has_its_line(names: Callable[[str], Looks]) -> None:
    source = script("scale = 1.0", "factor = scale\n        scale = 0.9 * scale")
    [one] = names(source).carried
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "scale = 0.9" in text)
    assert (one.name, one.where) == ("scale", f"train.py:{line}")


LANES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, lanes=2, threads=1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8))
{before}
for epoch in run.epochs(2):
    for step in run.steps(loader):
        for batch in step:
            {turn}
        optimizer.step()
        optimizer.zero_grad()
"""
LOSS = "model(batch[0]).square().mean()"


@pytest.mark.parametrize(
    ("before", "turn", "named"),
    [
        ("centre = torch.zeros(1)", "loss = (model(batch[0]) - centre).square().mean(); centre = 0.9 * centre + 0.1 * loss.detach(); run.backward(loss)", "centre"),
        ("bank = []", f"loss = {LOSS} + sum(bank[-2:]); bank.append(loss.detach()); run.backward(loss)", "bank"),
        ("class State: weight = 1.0", f"loss = State.weight * {LOSS}; State.weight = loss.item(); run.backward(loss)", "State.weight"),
        ("def loss_of(x):\n    global seen\n    seen += 1\n    return seen * x.square().mean()\nseen = 0", "run.backward(loss_of(model(batch[0])))", "seen"),
        ("run.state.losses = []", f"run.state.losses.append(1.0); run.backward({LOSS} * len(run.state.losses))", "run.state.losses"),
        ("model._own = 1.0", f"model._own *= 0.9; run.backward({LOSS} * model._own)", "model._own"),
        ("model.steps = 0", f"model.steps += 1; run.backward({LOSS} * model.steps)", "model.steps"),
        ("total, all_of = 0.0, []", f"loss = {LOSS}; total += loss.item(); all_of.append(loss.item()); run.backward(loss)", ""),
        ("hidden = None", f"hidden = torch.zeros(1); run.backward({LOSS} + hidden)", ""),
        ("rng = torch.Generator().manual_seed(1)", f"run.backward({LOSS} * torch.rand((), generator=rng))", "rng"),
        ("mixup = True", f"if mixup:\n                perm = torch.randperm(4); run.backward(model(batch[0][perm % 4]).square().mean())\n            else: run.backward({LOSS})", ""),
        ("made = None", f"made = [torch.zeros(2, 2)]; made.append(torch.zeros(2, 2)); made[-1][:, 0] = 1.0; run.backward({LOSS}); print(made)", ""),
        ("def sum_of(s): return s * s\ns = 0.0", f"s = s + 1.0; run.backward({LOSS} * sum_of(1.0))", ""),
        ("def loss_of(x): return weight * x\nweight, on = 1.0, True", f"run.backward(loss_of({LOSS}))\n            if on: weight = 0.9 * float(torch.rand(()))", "weight"),
        ("own = torch.Generator()", f"own = torch.Generator().manual_seed(run.seed(step.number, step.lane)); run.backward({LOSS} * torch.rand((), generator=own))", ""),
    ],
)  # fmt: skip
def test_what_a_lane_leaves_and_something_reads_is_handed_on(
    before: str, turn: str, named: str, names: Callable[[str], Looks]
) -> None:
    looks = names(LANES.format(before=before, turn=turn))
    assert [one.name for one in looks.handed_on] == ([named] if named else [])


@pytest.mark.parametrize(
    ("behind", "named"),
    [
        ("k = k + 0.1 * loss.item()", "k"),
        ("gap = loss.detach() - 1.0; k = 0.9 * k + gap.mean().item()", "k"),
        ("run.state.k = loss.item()", "k"),
        ("k = 0.9 * k + run.mean(loss.item())", ""),
        ("k = 0.9 * k + float(step.loss)", ""),
        ("total = loss.item(); print(total)", ""),
        ("losses.append(loss.item())", ""),
    ],
)
def test_what_is_made_of_a_ranks_last_lane_and_lanes_read_is_handed_on(
    behind: str, named: str, names: Callable[[str], Looks]
) -> None:
    source = LANES.replace("        optimizer.step()", f"        {behind}\n        optimizer.step()")
    read = "run.state.k" if "state" in behind else "k"
    looks = names(
        source.format(
            before="k, losses = 1.0, []; run.state.k = 1.0", turn=f"loss = {LOSS} * {read}; run.backward(loss)"
        )
    )
    assert [one.name for one in looks.handed_on] == ([named] if named else [])


GAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, lanes=2, threads=1)
a, b = nn.Linear(4, 4), nn.Linear(4, 1)
of_a, of_b = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
a, b, of_a, of_b, loader = run.prepare(a, b, of_a, of_b, DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8))
for epoch in run.epochs(2):
    for step in run.steps(loader):
        {first}
        for batch in step: run.backward(b(a(batch[0])).mean())
        of_a.step()
        {second}
        for batch in step: run.backward(b(a(batch[0]).detach()).square().mean())
        of_b.step()
"""


@pytest.mark.parametrize(
    ("first", "second", "accumulates"),
    [("of_a.zero_grad()", "of_b.zero_grad()", False), ("of_a.zero_grad()", "", True), ("", "of_b.zero_grad()", True)],
)
def test_gradients_that_are_reset_before_their_own_pass_are_no_accumulation(
    first: str, second: str, accumulates: bool, names: Callable[[str], Looks]
) -> None:
    assert names(GAN.format(first=first or "pass", second=second or "pass")).accumulates is accumulates


@pytest.mark.parametrize("hook", ["weight_norm(model)", "spectral_norm(model)", "prune.identity(model, 'weight')"])
@pytest.mark.filterwarnings("ignore")
def test_a_weight_that_a_hook_makes_anew_before_each_forward_is_not_named(
    hook: str, names: Callable[[str], Looks]
) -> None:
    imported = "from torch.nn.utils import prune, spectral_norm, weight_norm\n"
    source = LANES.replace("optimizer = torch", f"{imported}{hook}\noptimizer = torch", 1)
    looks = names(source.format(before="", turn=f"run.backward({LOSS})"))
    assert (looks.handed_on, looks.carried) == ([], [])


class Trap:
    """Whatever is asked of it fails: a look asks nothing of the user's objects."""

    def __init__(self) -> None:
        object.__setattr__(self, "value", 1)

    def _fail(self, *_: object) -> object:
        raise AssertionError("a look ran the user's code")

    __getattr__ = __getattribute__ = __setattr__ = __eq__ = __hash__ = __len__ = __iter__ = __bool__ = __repr__ = _fail  # type: ignore[assignment]
    __reduce__ = __getstate__ = __next__ = __getitem__ = __contains__ = _fail  # type: ignore[assignment]


def read(value: object, most_s: float = 9.0) -> tuple[bytes, bool]:
    return Reader(frozenset(), time.perf_counter, time.perf_counter() + most_s).read(value)


def test_a_look_runs_no_code_of_the_users_and_sees_what_changes() -> None:
    trap = Trap()
    before = read([trap])
    assert before == read([trap])
    assert before[1]
    object.__setattr__(trap, "value", 2)
    assert read([trap]) != before


@pytest.mark.parametrize(
    "value", [iter([1]), itertools.count(), io.BytesIO(), sqlite3.connect(":memory:"), [iter([1])]]
)
def test_what_cannot_be_read_is_not_the_same(value: object) -> None:
    assert not read(value)[1]


def test_what_comes_after_the_time_is_over_was_not_read() -> None:
    assert not read([[object()]], most_s=-1.0)[1]


def test_a_look_keeps_no_object_of_the_script() -> None:
    def keeps() -> weakref.ref[nn.Linear]:
        thing = nn.Linear(1, 1)
        look(Prepared(frozenset(), (), (), ()), 1.0)
        return weakref.ref(thing)

    assert keeps()() is None


def test_what_the_script_holds_of_its_own_variables_stays() -> None:
    own = 1
    held = locals()
    look(Prepared(frozenset(), (), (), ()), 1.0)
    assert held["own"] == own
