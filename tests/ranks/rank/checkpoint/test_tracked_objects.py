"""What a script names in `run.track` and keeps in `run.state` is part of every state."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
EPOCHS, STEPS = 2, 5


class Worst:
    """A metric of the script's own: the largest losses, and a tensor."""

    def __init__(self):
        self.losses, self.total = [], torch.zeros(())

    def see(self, loss):
        self.losses = sorted([*self.losses, float(loss)])[-3:]
        self.total += loss

    def state_dict(self):
        return {"losses": self.losses, "total": self.total}

    def load_state_dict(self, state):
        self.losses, self.total = state["losses"], state["total"]


def begin(*, automatic=True, lanes=4):
    saving = {"name": "exp1", "save_every": "1steps"} if automatic else {}
    run = samebits.init(seed=3, lanes=lanes, threads=1, **saving)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(scenarios.digits(150), batch_size=32, shuffle=True)
    return run, *run.prepare(model, optimizer, loader)


def train(place, stop_after=None, automatic=True):
    os.chdir(place)
    run, model, optimizer, loader = begin(automatic=automatic)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    worst = Worst()
    plan = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    run.track(average=average, worst=worst)
    run.track(plan=plan)
    run.state.best, run.state.epoch_losses, run.state.seen, run.state.mean = 99.0, [], 0, torch.zeros(2)
    epoch_losses = run.state.epoch_losses
    if not automatic:
        run.load_state("state", missing_ok=True)
    for _ in run.epochs(EPOCHS):
        run.state.seen = 0
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return "stopped"
            step.backward(lambda batch: F.cross_entropy(model(batch[0]) * (1 + run.state.seen), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            plan.step()
            average.update_parameters(model)
            worst.see(step.loss)
            run.state.seen += 1
            run.state.mean += step.loss / torch.tensor([2.0, 4.0])
            run.state.best = min(run.state.best, step.loss)
        epoch_losses.append(step.loss)
        if not automatic:
            run.save_state("state")
    kept = {name: getattr(value, "tolist", lambda value=value: value)() for name, value in vars(run.state).items()}
    return digest_of(model, optimizer, average, plan), worst.losses, worst.total.item(), kept


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_ranks(train, Started(1), str(tmp_path_factory.mktemp("straight")))[0]


@promise(
    "save-and-resume",
    "Objects of `run.track` and values of `run.state` go on with the run",
    also=["test_they_are_part_of_states_that_the_script_saves"],
)
@pytest.mark.parametrize(
    ("after", "ranks", "then"),
    [(5, 2, 1), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((3, 1, 2), (8, 4, 4)))],
)
def test_objects_and_values_go_on_with_the_run(tmp_path, undisturbed, after, ranks, then):
    assert run_ranks(train, Started(ranks), str(tmp_path), after) == ["stopped"] * ranks
    assert run_ranks(train, Started(then), str(tmp_path)) == [undisturbed] * then
    assert undisturbed[3]["seen"] == STEPS
    assert len(undisturbed[3]["epoch_losses"]) == EPOCHS


def test_they_are_part_of_states_that_the_script_saves(tmp_path, undisturbed):
    assert run_ranks(train, Started(2), str(tmp_path), 7, False) == ["stopped"] * 2
    assert run_ranks(train, Started(1), str(tmp_path), None, False) == [undisturbed]


class Odd:
    def state_dict(self):
        return {"made": [object()]}

    def load_state_dict(self, state):
        pass


def track_twice(run, one):
    run.track(worst=one)
    run.track(other=one)


MISTAKES = {
    "run.track(best=...) needs an object with state_dict and load_state_dict, but got a float": lambda run, _: run.track(best=1.0),
    "run.track got the name worst twice": lambda run, _: (run.track(worst=Worst()), run.track(worst=Worst())),
    "got what is tracked as worst already": lambda run, _: track_twice(run, Worst()),
    "got a Sequential that run.prepare took": lambda run, model: run.track(net=model),
    "run.track got the name 'a b'": lambda run, _: run.track(**{"a b": Worst()}),
    "run.track got nothing": lambda run, _: run.track(),
    "odd.made[0] is a object, which cannot be saved without pickle": lambda run, _: run.track(odd=Odd()),
    "run.track got worst0=Worst on rank 0, but worst1=Worst on rank 1": lambda run, _: run.track(**{f"worst{run.rank}": Worst()}),
    "run.track was called after the first epoch or step": lambda run, _: [run.track(worst=Worst()) for _ in run.epochs(1)],
    "or after run.load_state": lambda run, _: (run.load_state("state", missing_ok=True), run.track(worst=Worst())),
}  # fmt: skip


def mistakes():
    said = {}
    for words, make in MISTAKES.items():
        run, model, *_ = begin(automatic=False)
        try:
            make(run, model)
        except samebits.UsageError as error:
            said[words] = str(error)
        samebits.finish()
    return said


@promise(
    "save-and-resume",
    "What cannot be tracked, other names, and values that differ between ranks are one sentence",
    also=[
        "test_a_state_with_other_names_and_values_of_one_rank_are_said",
        "test_what_cannot_be_saved_is_refused_at_the_assignment",
        "test_a_metric_whose_values_are_in_no_state_dict_is_refused",
    ],
)
def test_what_cannot_be_tracked_is_one_sentence():
    for said in run_ranks(mistakes, Started(2)):
        for words in MISTAKES:
            assert words in said.get(words, "nothing")


def saved_and_loaded(place):
    """What a state says that has other names, or values that differ between ranks."""
    os.chdir(place)
    run, *_ = begin(automatic=False)
    run.track(worst=Worst())
    run.state.best = 0.9
    run.save_state("state")
    said = {}
    run, *_ = begin(automatic=False)
    try:
        run.load_state("state")
    except samebits.UsageError as error:
        said["gone"] = str(error)
    run, *_ = begin(automatic=False)
    run.track(worst=Worst(), newer=Worst())
    run.load_state("state")
    said["best"] = run.state.best
    try:
        run.state.best = 0.0
    except samebits.UsageError as error:
        said["lost"] = str(error)
    run, *_ = begin(automatic=False)
    run.state.rank = run.rank
    try:
        run.save_state("other")
    except samebits.UsageError as error:
        said["apart"] = str(error)
    return said


def test_a_state_with_other_names_and_values_of_one_rank_are_said(tmp_path, capfd):
    for said in run_ranks(saved_and_loaded, Started(2), str(tmp_path)):
        assert "it holds 'worst', which this script does not track. Add run.track(worst=...)" in said["gone"]
        assert said["best"] == 0.9
        assert "run.state.best was loaded by run.load_state" in said["lost"]
        assert "'run.state.rank' is not the same on every rank" in said["apart"]
    assert not (tmp_path / "other").exists()


PREPARED_AVERAGE = """
    import os, signal, torch, torch.nn.functional as F
    from torch import nn
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=3, lanes=2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(0, 2, (40,))), batch_size=8, shuffle=True)
    model, optimizer, average, loader = run.prepare(model, optimizer, average, loader)
    for step in run.steps(loader, epochs=3):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        if step.number == 9 and "KILLS" in os.environ and run.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    run.print("average", int(average.n_averaged), float(sum(t.double().sum() for t in average.state_dict().values())).hex())
"""


@pytest.mark.thorough
def test_a_prepared_average_is_not_trained_and_survives_a_kill(tmp_path):
    one, two = run_script(tmp_path, PREPARED_AVERAGE, "-n", "1"), run_script(tmp_path, PREPARED_AVERAGE, "-n", "2")
    killed = run_script(tmp_path, PREPARED_AVERAGE, "-n", "2", env={"KILLS": "1"})
    assert one.code == two.code == killed.code == 0, killed.err
    assert "average 15 " in one.out
    assert "SIGKILL" in killed.err
    assert one.out == two.out
    assert one.out.splitlines()[-1] == killed.out.splitlines()[-1]


def test_a_metric_whose_values_are_in_no_state_dict_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Metric(nn.Module):
        """As torchmetrics' before `persistent(True)`."""

        def __init__(self):
            super().__init__()
            self._persistent = {"total": False}

    run, *_ = begin(automatic=False)
    with pytest.raises(samebits.UsageError, match=r"persistent\(True\)"):
        run.track(accuracy=nn.ModuleDict({"top1": Metric()}))
    samebits.finish()
