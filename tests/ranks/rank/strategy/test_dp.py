"""`dp`: one rank whose model runs in replicas, as torch's DataParallel does it."""

import contextlib
import copy
import io
import pickle
import re
import subprocess
import sys
import warnings
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.errors import UsageError
from samebits.protocol.layout.mesh import Form, choose_mesh, launched
from samebits.rank.strategy.dp import replica_devices
from samebits.rank.strategy.split_forward import SplitForward, apply, gather_outputs, scatter_call
from samebits.testing.digests import digest_of
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import scenarios
from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TWO = Form("dp", "dp=2")

NOTE = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset
    {imports}

    class RandomDataset(Dataset):
        def __init__(self, size, length):
            self.data = torch.randn(length, size)
        def __getitem__(self, index):
            return self.data[index]
        def __len__(self):
            return len(self.data)

    class Model(nn.Module):
        def __init__(self, input_size, output_size):
            super().__init__()
            self.fc = nn.Linear(input_size, output_size)
        def forward(self, input):
            output = self.fc(input)
            print(f"In Model: input size {{input.size()}} output size {{output.size()}}\\n", end="")
            return output

    {before}
    model = Model(5, 2)
    rand_loader = DataLoader(RandomDataset(5, 100), batch_size=30)
    {prepare}
    for data in rand_loader:
        output = model(data)
        print("Outside: input size", data.size(), "output size", output.size())
"""


def sizes(text: str, where: str) -> list[int]:
    """The batch sizes that were printed inside or outside the model; inputs and outputs have the same."""
    found = re.findall(
        rf"^{where}: input size torch.Size\(\[(\d+), 5\]\) output size torch.Size\(\[(\d+), 2\]\)$", text, re.MULTILINE
    )
    assert all(before == after for before, after in found)
    return [int(before) for before, _ in found]


@promise(
    "strategies-that-promise-no-equal-bits",
    "`dp`: a batch of 30 is 15 + 15 inside the model; scatter and gather by torch's rules; all gradients "
    "arrive; a replica's exception names it",
    also=[
        "test_calls_are_scattered_and_outputs_gathered_by_torchs_rules",
        "test_gradients_of_all_replicas_arrive_and_the_whole_batch_is_learned_from",
        "test_an_exception_of_a_replica_names_it",
    ],
)
@pytest.mark.thorough
def test_the_notes_shapes_are_15_and_15_inside_of_30(tmp_path):
    buffers = {
        "imports": "import samebits",
        "before": "run = samebits.init()",
        "prepare": "model, rand_loader = run.prepare(model, rand_loader)",
    }
    finished = run_script(tmp_path, NOTE.format(**buffers), "-n", "2", "--strategy", "dp", "--lanes", "1")
    assert finished.code == 0, finished.err
    assert sizes(finished.out, "Outside") == [30, 30, 30, 10]
    assert sizes(finished.out, "In Model") == [15, 15, 15, 15, 15, 15, 5, 5]
    assert finished.err.startswith("samebits  1 rank with 2 replicas on cpu, 1 lane of 30, dp, 2 replicas   ")
    assert "another run may give others" in finished.err


@pytest.mark.thorough
def test_a_plain_data_parallel_script_on_the_cpu_calls_the_module_directly(tmp_path):
    buffers = {"imports": "", "before": "", "prepare": "model = nn.DataParallel(model)"}
    finished = run_script(tmp_path, NOTE.format(**buffers), "-n", "1", "--device", "cpu")
    assert finished.code == 0, finished.err
    assert sizes(finished.out, "In Model") == sizes(finished.out, "Outside") == [30, 30, 30, 10]
    plain = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert plain.stdout == finished.out


def learned(form_independent):
    """Losses of three steps and a digest; without dropout and BatchNorm the replicas only change rounding."""
    run = samebits.init(seed=0)
    model = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        if form_independent
        else scenarios.Cnn()
    )
    keys = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(scenarios.digits(72), batch_size=24, shuffle=True, num_workers=1)
    prepared, optimizer, loader = run.prepare(model, optimizer, loader)
    assert prepared is model
    assert list(model.state_dict()) == keys
    losses = []
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for images, labels in step:
                assert len(images) == 24
                run.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(step.loss))
    trained = [parameter.detach().tolist() for parameter in model.parameters()] if form_independent else []
    assert run.world_size == run.num_lanes == 1
    return losses, digest_of(model), trained


def test_gradients_of_all_replicas_arrive_and_the_whole_batch_is_learned_from():
    [(split, _, parameters)] = run_ranks(learned, Started(1, form=TWO), True)
    [(whole, _, expected)] = run_ranks(learned, Started(1, lanes=1), True)
    assert split == pytest.approx(whole, rel=1e-5)
    for one, other in zip(parameters, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))
    [(losses, _, _)] = run_ranks(learned, Started(1, form=Form("dp", "dp=3")), False)
    assert losses[-1] < losses[0]


class Watcher(nn.Module):
    """Notes what its replicas see."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.seen = []

    def forward(self, inputs, *, scale=1.0, fail=False):
        if fail and len(inputs) == 2:
            raise ValueError("as asked")
        self.seen.append((inputs.shape[0], torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), self.training))
        return self.norm(self.layer(inputs)) * scale

    def encode(self, inputs):
        return self.layer(inputs)


def watched(replicas):
    model = Watcher()
    SplitForward(model, [torch.device("cpu")] * replicas).hang()
    return model


def test_buffers_of_the_first_replica_stay_as_in_torch():
    model = watched(2)
    inputs = torch.randn(6, 4)
    model(inputs)
    alone = Watcher()
    alone.load_state_dict({**alone.state_dict(), **dict(model.named_parameters())})
    alone(inputs[:3])
    assert model.norm.running_mean.equal(alone.norm.running_mean)
    assert int(model.norm.num_batches_tracked) == 1


def test_replicas_have_the_modes_and_hooks_of_the_caller():
    model, hooked = watched(2), []
    model.register_forward_hook(lambda *given: hooked.append(given[2].shape[0]))
    with torch.no_grad():
        model(torch.randn(5, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.eval()(torch.randn(5, 4), scale=2.0).shape == (5, 3)
    modes = sorted(model.seen)
    assert modes == [(2, False, False, True), (2, True, True, False), (3, False, False, True), (3, True, True, False)]
    assert hooked == [5, 5]
    with torch.inference_mode():
        assert apply([torch.is_inference_mode_enabled] * 2, [((), {})] * 2) == [True, True]
    model.seen.clear()
    model(torch.randn(1, 4))  # fewer samples than replicas: fewer replicas
    assert [seen[0] for seen in model.seen] == [1]
    assert model.encode(torch.randn(6, 4)).shape == (6, 3)


def test_an_exception_of_a_replica_names_it():
    with pytest.raises(ValueError, match="as asked") as caught:
        watched(3)(torch.randn(6, 4), fail=True)
    assert caught.value.__notes__ == ["in replica 0 of 3 (dp)"]
    with pytest.raises(ValueError, match="as asked") as caught:
        watched(2)(torch.randn(5, 4), fail=True)
    assert caught.value.__notes__ == ["in replica 1 of 2 (dp)"]


def test_a_split_model_can_be_copied_pickled_and_given_back():
    model = watched(2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.seen.clear()
        other(torch.randn(6, 4))
        assert [seen[0] for seen in other.seen] == [3, 3]
    assert model.seen == []
    model.__dict__["forward"].take_away()
    model(torch.randn(6, 4))
    assert [seen[0] for seen in model.seen] == [6]


class Pair(NamedTuple):
    left: object
    right: object


def test_calls_are_scattered_and_outputs_gathered_by_torchs_rules():
    rows, flag = torch.arange(7), object()
    shares = scatter_call((rows, [rows, flag], Pair(rows, 1)), {"mask": {"a": rows}, "flag": flag}, 3)
    assert [share[0][0].tolist() for share in shares] == [[0, 1, 2], [3, 4, 5], [6]]
    assert shares[1][0][1][0].tolist() == [3, 4, 5]
    assert all(share[0][1][1] is flag is share[1]["flag"] for share in shares)
    assert isinstance(shares[2][0][2], Pair)
    assert shares[2][1]["mask"]["a"].tolist() == [6]
    assert scatter_call((), {}, 3) == [((), {})]
    assert len(scatter_call((torch.ones(4),), {}, 3)) == 2  # 2 + 2, as torch.chunk cuts
    assert len(scatter_call((torch.ones(2),), {"flag": flag}, 3)) == 2  # no call without a row, where torch makes one
    assert len(scatter_call((flag,), {"rows": torch.ones(2)}, 3)) == 2
    outputs = [{"out": share[0][0], "pair": Pair(share[0][0], None)} for share in shares]
    joined = gather_outputs(outputs)
    assert joined["out"].tolist() == joined["pair"].left.tolist() == list(range(7))
    assert joined["pair"].right is None
    with pytest.warns(UserWarning, match="all input tensors were scalars; will instead unsqueeze and return a vector"):
        assert gather_outputs([torch.tensor(1.0), torch.tensor(2.0)]).tolist() == [1.0, 2.0]
    for wrong in ([1.0, 2.0], [{"a": rows}, {"b": rows}], [[rows], [rows, rows]]):
        with pytest.raises(UsageError, match=r"joined|Return tensors"):
            gather_outputs(wrong)
    with pytest.raises(UsageError, match="one of them has no dimensions"):
        scatter_call((torch.tensor(1.0),), {}, 2)


class InForward(nn.Module):
    """Returns its loss, as many scripts for DataParallel do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images, labels):
        return F.cross_entropy(self.layer(images.flatten(1)), labels)


def loss_in_forward(mean):
    run = samebits.init()
    model = InForward()
    model, loader = run.prepare(model, DataLoader(scenarios.digits(16), batch_size=8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in run.steps(loader):
            step.backward(lambda batch: model(*batch).mean() if mean else model(*batch))
    return True


def method_only():
    run = samebits.init()
    model = Watcher()
    model, loader = run.prepare(model, DataLoader(torch.randn(8, 4), batch_size=4))
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        for step in run.steps(loader):
            step.backward(lambda batch: model.encode(batch).sum())
    return told.getvalue()


def test_a_script_that_never_calls_the_model_itself_is_told_once():
    [told] = run_ranks(method_only, Started(1, form=TWO))
    assert told.count("dp splits model(...)") == 1
    assert run_ranks(method_only, Started(1)) == [""]


def compiled():
    run = samebits.init()
    run.prepare(nn.Sequential(torch.compile(nn.Linear(2, 2))))


def replaced_forward():
    run = samebits.init()
    model = nn.Linear(2, 2)
    model.forward = lambda inputs: inputs
    run.prepare(model)


def test_a_loss_made_in_forward_comes_back_as_a_vector():
    assert run_ranks(loss_in_forward, Started(1, form=TWO), True) == [True]
    with pytest.raises(RankFailed, match=r"run.backward needs a scalar loss, but got \(2,\)"):
        run_ranks(loss_in_forward, Started(1, form=TWO), False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mistake", "form", "ranks", "message"),
    [
        (compiled, TWO, 1, "Prepare the model without torch.compile"),
        (replaced_forward, TWO, 1, "Write forward as a method of the class"),
        (compiled, Form("dp"), 2, r"samebits run -n 2 --strategy dp` \(one rank, 2 replicas\), or use ddp"),
    ],
)
def test_what_cannot_be_replicated_is_one_sentence(mistake, form, ranks, message):
    with pytest.raises(RankFailed, match=message) as caught:
        run_ranks(mistake, Started(ranks, form=form, timeout_s=30))
    assert caught.value.error_type == "UsageError"


def test_under_dp_the_number_counts_replicas():
    assert launched(Form("data_parallel"), 4) == (1, Form("dp", "dp=4"))
    assert launched(Form("ddp"), 4) == (4, Form("ddp"))
    assert choose_mesh(Form(mesh="dp=3"), 1).copies == 3
    with pytest.raises(UsageError, match="-n 4 and mesh dp=2 contradict each other"):
        launched(Form(mesh="dp=2"), 4)
    with pytest.raises(UsageError, match="Write dp=2 for two replicas"):
        choose_mesh(Form("dp", "ddp=2"), 1)
    with pytest.raises(UsageError, match="do not fit together"):
        choose_mesh(Form("ddp", "dp=2"), 1)
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    assert replica_devices(0, cpu, 4) == [cpu]
    assert [device.index for device in replica_devices(0, gpu, 4)] == [1, 0, 2, 3]
    assert [device.index for device in replica_devices(2, gpu, 4)] == [1, 0]
    with pytest.raises(UsageError, match="5 replicas need 5 GPUs, but torch sees 4"):
        replica_devices(5, gpu, 4)


@pytest.mark.thorough
def test_a_replicas_failure_is_told_with_its_number(tmp_path):
    script = """
        import torch, samebits
        from torch import nn
        class Odd(nn.Linear):
            def forward(self, inputs):
                if len(inputs) == 2:
                    raise ValueError("two rows")
                return super().forward(inputs)
        run = samebits.init()
        model = run.prepare(Odd(3, 3))
        model(torch.ones(5, 3))
    """
    finished = run_script(tmp_path, script, "-n", "2", "--strategy", "dp")
    assert finished.code == 1
    assert "FAILED    rank 0, in the script: ValueError: two rows" in finished.err
    assert "in replica 1 of 2 (dp)" in finished.err
