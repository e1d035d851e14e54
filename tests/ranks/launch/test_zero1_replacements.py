"""Under zero1 a rank that dies is replaced where the others can be sure of its share of the optimizer's state.

Where they cannot, all ranks start again. The bits are always those of an undisturbed run.
"""

import pytest

from tests.ranks.launch import test_random_kills as storms
from tests.ranks.launch.test_replacements import TRAIN, straight
from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

FATAL_UPDATE = """
from lockstep.strategy.zero1.zero1 import Zero1
for name in ("_before_engine", "_after_engine"):
    fatal(Zero1, name)
"""

OPTIMIZERS = {
    "AdamW": "torch.optim.AdamW(model.parameters(), lr=0.01)",
    "SGD": "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)",
    "whole parameters": "torch.optim.Adafactor(model.parameters(), lr=0.01)",
    "declared": "Slow(model.parameters())",
    "without a state": "torch.optim.SGD(model.parameters(), lr=0.05)",
    "numbers": "Counting(model.parameters())",
    "new tensors": "Fresh(model.parameters())",
}
if hasattr(__import__("torch").optim, "Muon"):
    OPTIMIZERS["Muon"] = "torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.01)"

OTHERS = '''
class Counting(Slow):
    """One with a Python number in its state."""

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                state = self.state[p]
                state["count"] = state.get("count", 0.5) + 1.5
                momentum = state.setdefault("momentum", torch.zeros_like(p))
                p.sub_(momentum.mul_(0.9).add_(p.grad, alpha=state["count"] ** 0.25), alpha=0.05)


class Fresh(Slow):
    """One that makes new tensors for its state."""

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                state = self.state[p]
                state["momentum"] = state.get("momentum", torch.zeros_like(p)) * 0.9 + p.grad
                p.sub_(state["momentum"], alpha=0.05)
'''


def script(optimizer: str, **changes: str) -> str:
    """The script of `test_replacements` with a model large enough to be cut, and another optimizer."""
    changes = {
        "            momentum = ": "            if p.grad is None:\n                continue\n            momentum = ",
        "nn.Linear(16, 32)": "nn.Linear(16, 96)",
        "BatchNorm1d(32)": "BatchNorm1d(96)",
        "nn.Linear(32, 10)": "nn.Linear(96, 10)",
        "scheduler, train, test)": "scheduler, train, test, updates_by='parameter')",
        "\nat = None\nrun =": f"\n{OTHERS}\nat = None\n{FATAL_UPDATE}run =",
        "Slow(model.parameters())": OPTIMIZERS[optimizer],
        **changes,
    }
    text = TRAIN
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


class Undisturbed:
    """What runs on one rank give, each made once."""

    def __init__(self, factory):
        self._factory, self._found = factory, {}

    def __call__(self, text):
        if text not in self._found:
            self._found[text] = straight(run_script(self._factory.mktemp("straight"), text, "-n", "1"))
        return self._found[text]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Undisturbed(tmp_path_factory)


def run(place, text, kills, *, ranks=3, strategy="zero1"):
    finished = run_script(
        place, text, "-n", str(ranks), "--strategy", strategy, "--max-restarts", "30", args=tuple(kills)
    )
    assert len(list(place.glob("killed-*"))) == len(kills), f"every kill came\n{finished.err}"
    return finished


def outcome(finished, place):
    """The bits, and what was logged, even if all ranks started again."""
    return storms.result(finished, place)


REPLACED = {
    "the loop": ["1:forward:2", "2:hook:3", "1:step:11", "2:forward:14", "0:forward:17"],
    "the exchange": [
        "2:before all_gather_bytes:3",
        "1:before advance:6",
        "2:after advance:9",
        "1:before finish:12",
        "0:before finish:14",
    ],
    "around the loop": [
        "1:start:0",
        "2:prepared:0",
        "0:body:0",
        "1:body:1",
        "0:evaluation:1",
        "2:evaluation:2",
        "0:over:0",
    ],
    "two at once": ["1:forward:3", "2:forward:3", "0:forward:8", "1:forward:8"],
}
"""Which rank dies where, and is replaced."""

RESTARTED = {
    "the update": ["1:after _before_engine:3", "2:before _after_engine:6", "0:after _after_engine:9", "1:updated:14"],
    "two at once": ["1:updated:4", "2:updated:4", "0:updated:9", "2:step:10", "1:exchanged:12", "2:forward:17"],
}
"""Which rank dies where, but for some of them all ranks start again."""


@pytest.mark.parametrize(
    "where", ["the loop", *(pytest.param(one, marks=pytest.mark.thorough) for one in REPLACED if one != "the loop")]
)
def test_a_rank_is_replaced_with_its_share_of_the_state(tmp_path, undisturbed, where):
    text = script("AdamW")
    finished = run(tmp_path, text, REPLACED[where])
    assert straight(finished) == undisturbed(text)
    assert finished.err.count("nothing recomputed") == len(REPLACED[where]), finished.err
    assert "start again" not in finished.err


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("where", [*REPLACED, *RESTARTED])
def test_the_bits_are_those_of_an_undisturbed_run(tmp_path, undisturbed, optimizer, ranks, where):
    kills = [kill for kill in {**REPLACED, **RESTARTED}[where] if int(kill[0]) < ranks]
    text = script(optimizer)
    finished = run(tmp_path, text, kills, ranks=ranks)
    bits, _, logged = undisturbed(text)
    assert outcome(finished, tmp_path) == (bits, logged)


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["the update", "two at once"])
def test_where_nobody_can_be_sure_all_ranks_start_again(tmp_path, undisturbed, where):
    text = script("AdamW")
    finished = run(tmp_path, text, RESTARTED[where])
    bits, _, logged = undisturbed(text)
    assert outcome(finished, tmp_path) == (bits, logged)
    assert "start again" in finished.err


@pytest.mark.thorough
def test_the_parameters_are_in_memory_once_again_after_a_replacement_unless_the_script_looks_at_them(
    tmp_path, undisturbed
):
    shows = """
    if epoch == 3:
        from lockstep.run.start import _present
        from lockstep.strategy.zero1.visibility import Visibility
        run.print("shared", len(_present[0].machinery.strategy._visibility._parts))
here("over", 0)"""
    text = script("AdamW", **{'\nhere("over", 0)': shows})
    # A list of its own would be compared, and its tensors change: all ranks would start again.
    holds = "\nholds = [p.data for p in model.parameters()].__len__\nwhole_run ="
    views = script("AdamW", **{'\nhere("over", 0)': shows, "\nwhole_run =": holds})
    for name, program, num_shared in (("own", text, 1), ("views", views, 0)):
        place = tmp_path / name
        place.mkdir()
        finished = run(place, program, ["1:forward:2", "0:forward:9"])
        assert straight(finished)[0] == undisturbed(script("AdamW"))[0]
        assert f"shared {num_shared}" in finished.out
        assert finished.err.count("nothing recomputed") == 2, finished.err


SAVES = """    run.state.best = max(run.state.best, accuracy)
    whole = optimizer.state_dict()
    here("between saves", epoch)
    run.save_state("saved")
    here("saved", epoch)
    run.log(square=float(sum(value.double().square().sum() for one in whole["state"].values() for value in one.values())))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["AdamW", "without a state"])
def test_a_rank_that_dies_around_a_save_hears_again_what_the_state_was(tmp_path, undisturbed, optimizer):
    text = script(optimizer, **{"    run.state.best = max(run.state.best, accuracy)\n": SAVES})
    kills = ["2:evaluation:0", "1:between saves:1", "0:evaluation:2", "2:saved:3"]
    finished = run(tmp_path, text, kills)
    assert straight(finished) == undisturbed(text)
    assert finished.err.count("nothing recomputed") == len(kills), finished.err


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    place = tmp_path_factory.mktemp("calm")
    return storms.result(run_script(place, storms.TRAIN, "-n", "1", args=("0",)), place)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_instants_change_nothing_under_zero1(tmp_path, calm, ranks, seed):
    finished, made = storms.disturbed(tmp_path, ranks, seed, 20, "--strategy", "zero1")
    assert storms.result(finished, tmp_path) == calm
    assert made >= 8
    # With four ranks two kills of three come in updates, between two steps or two at a time: now and then all do.
    assert "replaced in" in finished.err or ranks == 4


TWO = """
import os, signal, sys
from pathlib import Path
import torch, torch.nn.functional as F, lockstep
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
run = lockstep.init(seed=3, lanes=6, threads=1)
def here(step):
    for kill in sys.argv[1:]:
        mark = Path(f"killed-{kill}")
        if kill == f"{run.rank}:{step}" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
a = nn.Sequential(nn.Linear(16, 90), nn.ReLU(), nn.Linear(90, 40))
b = nn.Sequential(nn.Linear(40, 90), nn.ReLU(), nn.Linear(90, 7)).double()
kept = a[0].weight.data  # the script's own view, so this parameter stays where it is
a[2].bias.requires_grad_(False)
x, y = torch.randn(96, 16), torch.randint(0, 7, (96,))
first = torch.optim.AdamW(a.parameters(), lr=1e-2, amsgrad=True)
rest = [b[0].bias, *b[2].parameters()]
second = torch.optim.SGD([{"params": [b[0].weight]}, {"params": rest, "lr": 0.02}], lr=0.01, momentum=0.9)
a, b, first, second, loader = run.prepare(a, b, first, second, DataLoader(TensorDataset(x, y), 24, shuffle=True))
for epoch in run.epochs(5):
    if epoch == 4:
        a[2].bias.requires_grad_(True)
    for step in run.steps(loader):
        for i, j in step:
            here(step.number)
            run.backward(F.cross_entropy(b(a(i).double()), j))
        first.step()
        if step.number % 2:
            second.step()
        first.zero_grad()
        second.zero_grad()
        run.log(loss=step.loss, kept=float(kept.double().sum()))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_two_optimizers_a_view_and_a_parameter_that_is_unfrozen(tmp_path, undisturbed, strategy):
    finished = run(tmp_path, TWO, ["1:3", "2:6", "0:9", "1:11", "2:14", "0:18"], strategy=strategy)
    bits, _, logged = undisturbed(TWO)
    assert outcome(finished, tmp_path) == (bits, logged)
    assert finished.err.count("nothing recomputed") == 5, finished.err
    assert finished.err.count("start again") == 1, "what the last one would replace began with other frozen parameters"
