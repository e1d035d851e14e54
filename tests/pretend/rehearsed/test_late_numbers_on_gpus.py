"""What a step on GPUs leaves there until somebody reads it: losses, statistics of BatchNorm, checks of buffers."""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.pretend.plugin import run_ranks_on_the_cpu

pytestmark = pytest.mark.ranks


class Norms(nn.Module):
    """Two layers of statistics, of which some lanes use one only, and statistics of its own in 16 bits."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(6), nn.BatchNorm1d(5, momentum=None)
        self.last = nn.Linear(6, 5)
        self.register_buffer("means", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, inputs, *, uses_both):
        self.means.lerp_(inputs.detach().mean().to(torch.bfloat16).expand(3), 0.25)
        found = self.last(self.first(inputs) if uses_both else inputs) * self.means.sum() * self.mask.sum()
        return self.second(found)


def train(device, samples=40):
    """Weights, buffers and losses after a few steps; the last one is short."""
    run = samebits.init(seed=3, lanes=4, device=device)
    model = Norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(samples, 6), torch.randint(0, 5, (samples,)))
    loader = DataLoader(data, batch_size=16)
    model, optimizer, loader = run.prepare(model, optimizer, loader, buffers={"means": "mean"})
    steps = []
    for step in run.steps(loader):
        for inputs, labels in step:
            uses_both = step.lane % 3 != 1 or step.number == 2
            run.backward(F.cross_entropy(model(inputs, uses_both=uses_both), labels))
        optimizer.step()
        optimizer.zero_grad()
        steps.append(step)
        assert not run.is_main or step.number != 2 or step.loss > 0  # to read one is no matter of all ranks
    state = {name: value.tolist() for name, value in model.state_dict().items()}
    return state, [step.loss for step in steps]


def test_losses_and_statistics_that_nobody_waited_for_have_the_bits_of_the_cpu_on_any_number_of_ranks():
    ((state, losses),) = run_ranks_on_the_cpu(train, Started(1, lanes=4), "cpu")
    assert len(losses) == 3
    for ranks in (1, 2, 3):
        for found, told in run_ranks(train, Started(ranks, lanes=4), "cuda"):
            assert told == losses
            assert found == state


class Remembers(nn.Module):
    """Writes into a buffer behind torch's back, as codebooks do, from a step on; the same in every lane."""

    def __init__(self, begins):
        super().__init__()
        self.begins, self.at = begins, 0
        self.layer = nn.Linear(6, 5)
        self.register_buffer("book", torch.zeros(3))

    def forward(self, inputs):
        if self.at >= self.begins:
            self.book.data.add_(1)
        return self.layer(inputs)


def remember(begins):
    run = samebits.init(seed=3, lanes=4)
    model = Remembers(begins)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(96, 6), torch.randint(0, 5, (96,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16), buffers={"book": "first"})
    for step in run.steps(loader):
        model.at = step.number
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
    return model.book.tolist()


def test_a_buffer_that_lanes_write_to_behind_torchs_back_is_carried_on_where_they_do_so_from_the_start():
    for book in run_ranks(remember, Started(2, lanes=4), 1):
        assert book == [6.0] * 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_buffer_that_lanes_begin_to_write_to_behind_torchs_back_is_an_error(ranks):
    with pytest.raises(RankFailed, match=r"A buffer \(of 'book'\) was changed in a lane of an earlier step") as caught:
        run_ranks(remember, Started(ranks, lanes=4), 4)
    assert caught.value.error_type == "UsageError"


def damaged(rank):
    run = samebits.init(seed=1, lanes=6, check_every="50steps")
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(120, 8), torch.randint(0, 3, (120,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12))
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
        if (run.rank, step.number) == (rank, 5):
            torch.ops.pretend.host(model[1].running_var.detach()).view(torch.int32)[3] ^= 1


def test_a_flipped_bit_in_the_statistics_of_one_gpu_names_it():
    with pytest.raises(RankFailed) as caught:
        run_ranks(damaged, Started(3), 2)
    assert caught.value.error_type == "RanksDiffer"
    sentence = "Rank 2 no longer holds the same bits as the other ranks in 'Sequential.1.running_var'"
    assert caught.value.message.startswith(sentence)


def diverges(folder):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        diverge(folder)
    return said.getvalue()


def diverge(folder):
    run = samebits.init(seed=1, lanes=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(torch.arange(24.0).view(6, 4), batch_size=2))
    for step in run.steps(loader):
        for inputs in step:
            run.backward(model(inputs).mean() * (float("nan") if step.number == 3 and step.lane == 1 else 0.0))
        optimizer.zero_grad()
    run.save_state(folder / "state")


def test_a_loss_that_nobody_read_is_shown_and_saved_and_said_when_it_is_not_finite(tmp_path):
    (said,) = run_ranks(diverges, Started(1), tmp_path)
    assert "the loss is nan in step 3: it comes from lane 1" in said
    saved = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert '"num_losses":3' in saved.replace(" ", "")


def draw_in_evaluation():
    run = samebits.init(seed=1, lanes=1)
    loader = run.prepare(DataLoader(torch.arange(4.0), batch_size=2))
    places = [torch.device("cuda", index) for index in range(2)]
    before = [torch.cuda.get_rng_state(place) for place in places]
    drawn = [torch.rand(2, device=place).tolist() for _ in loader for place in places]
    there = [torch.cuda.get_rng_state(place) for place in places]
    saved = run._run.components.streams.snapshot()
    after = [torch.rand(2, device=place).tolist() for place in places]
    run._run.components.streams.restore(saved, 0)
    again = [torch.rand(2, device=place).tolist() for place in places]
    return len(drawn), all(map(torch.equal, before, there)), after == again


def test_the_streams_of_all_gpus_of_a_process_go_on_after_an_evaluation_and_a_resume():
    assert run_ranks(draw_in_evaluation, Started(1)) == [(4, True, True)]


def leaves(how):
    """A lane writes behind torch's back in the last step, which the script leaves: by `break`, or by holding the iterator."""
    run = samebits.init(seed=3, lanes=4)
    model = Remembers(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(160, 6), torch.randint(0, 5, (160,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16))

    def train_in(step):
        model.at = step.number
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()

    if how == "break":
        for step in run.steps(loader):
            train_in(step)
            if step.number == 5:
                break
    else:
        steps = run.steps(loader)
        for _ in range(5):
            train_in(next(steps))
        samebits.finish()


@pytest.mark.parametrize(("how", "ranks"), [("break", 2), ("next", 1)])
def test_what_is_wrong_in_a_step_that_the_script_leaves_is_raised_when_the_run_ends(how, ranks):
    with pytest.raises(RankFailed, match=r"A buffer .* was changed in a lane of an earlier step"):
        run_ranks(leaves, Started(ranks, lanes=4), how)


def counts_in_floats(ranks_lanes):
    run = samebits.init(seed=3, lanes=ranks_lanes)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    model.load_state_dict({name: value.float() for name, value in model.state_dict().items()}, assign=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.randint(0, 5, (64,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16))
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
    return model[1].running_mean.tolist()


def test_a_counter_of_batches_in_floats_has_the_bits_of_the_cpu():
    [expected] = run_ranks_on_the_cpu(counts_in_floats, Started(1, lanes=4), 4)
    for ranks in (1, 2):
        assert run_ranks(counts_in_floats, Started(ranks, lanes=4), 4) == [expected] * ranks


def loss_on_the_cpu():
    run = samebits.init(seed=3, lanes=1)
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(32, 6), torch.randint(0, 5, (32,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16))
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs).cpu(), labels.cpu()))
        optimizer.step()
        optimizer.zero_grad()
    return step.loss


def test_a_loss_that_a_script_computes_on_the_cpu_is_told():
    assert run_ranks(loss_on_the_cpu, Started(1)) == run_ranks_on_the_cpu(loss_on_the_cpu, Started(1))
