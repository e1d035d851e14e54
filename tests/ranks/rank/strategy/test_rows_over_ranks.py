"""Of a table's gradient only rows travel, over shared memory and over Gloo; and one lane is the plain loop."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.rank.init import join
from samebits.rank.run import start
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import embeddings
from tests.scripts.scenarios import digits
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
WORDS, WIDTH = 20_000, 32


def sent_elements(over_gloo, sparse):
    """The elements of all sums over ranks in one step, the rows that the step's words are, and bits."""
    if over_gloo:
        join.native.why_not = lambda: "this test wants Gloo"
    run = samebits.init(seed=0, lanes=4)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH, sparse=sparse), nn.Flatten(), nn.Linear(64 * WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(32), batch_size=32))
    transport, sent, touched = start._present[-1].components.transport, [], set()
    begin = transport.begin_all_reduce

    def counted(partials, placement, out):
        sent.append(out.numel())
        return begin(partials, placement, out)

    transport.begin_all_reduce = counted
    for step in run.steps(loader):
        for images, labels in step:
            words = embeddings.words_of(images, WORDS)
            touched |= set(words.unique().tolist())
            run.backward(F.cross_entropy(model(words), labels))
        assert model[0].weight.grad.is_sparse is sparse
        optimizer.step()
    return sum(sent), sorted(touched), digest_of(model)


@promise(
    "same-bits",
    "Of an embedding's gradient only rows that some lane touched travel, with the bits of whole tables",
    also=[
        "test_the_gradient_has_few_rows_and_torch_s_bits",
        "test_what_counts_is_how_rows_were_looked_up_and_not_what_the_module_said_before",
    ],
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "over_gloo", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["shared memory", "gloo"]
)
def test_only_rows_that_somebody_touched_travel(over_gloo, sparse):
    told = run_ranks(sent_elements, Started(3), over_gloo, sparse)
    rows = set().union(*(touched for _, touched, _ in told))
    head = 64 * WIDTH * 10 + 10
    for sent, _, _ in told:
        assert len(rows) * WIDTH + head <= sent < len(rows) * WIDTH + head + 256  # what lies between parameters
    [(_, _, alone)] = run_ranks(sent_elements, Started(1), False, sparse)
    assert {bits for *_, bits in told} == {alone}


def looked_up_nothing():
    """The gradients of tables whose lanes look up padding only, after steps that leave other numbers in their places."""
    run = samebits.init(seed=0, lanes=4)
    kinds = {"sparse": True, "dense": False}
    model = nn.ModuleDict({n: nn.Embedding(WORDS, WIDTH, padding_idx=0, sparse=one) for n, one in kinds.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(96), batch_size=32))
    largest = []
    for number, step in enumerate(run.steps(loader)):
        for lane, (images, _) in enumerate(step):
            words = embeddings.words_of(images, WORDS) * (number < 2)
            used = kinds if number < 2 or lane else {"sparse": True}
            run.backward(sum(model[name](words).sum() for name in used))
        largest.append([model[name].weight.grad.to_dense().abs().sum().item() for name in kinds])
        optimizer.step()
        optimizer.zero_grad()
    return largest


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_table_of_which_no_row_was_touched_has_a_gradient_of_zeros(ranks):
    for told in run_ranks(looked_up_nothing, Started(ranks)):
        assert all(min(sums) > 0 for sums in told[:-1])
        assert told[-1] == [0, 0]


def plainly(optimizers_of):
    """`embeddings.trained_sparsely` in torch alone, over the batches that samebits gives."""
    run = samebits.init(seed=3, lanes=1)
    model, stand_in, batches = embeddings.sparse_model(), nn.Linear(1, 1), []
    stand_in, loader = run.prepare(stand_in, DataLoader(digits(), batch_size=32, shuffle=True))
    for step in run.steps(loader):
        for images, labels in step:
            batches.append((step.number, images, labels))
            run.backward(stand_in(torch.ones(1, 1)).sum())
    optimizers = optimizers_of(model)
    for number, images, labels in batches:
        hidden = model["large"](embeddings.words_of(images))
        hidden = hidden + model["small"](labels // 2 if number % 3 else labels * 0)
        F.cross_entropy(model["head"](hidden), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return digest_of(model)


@pytest.mark.parametrize(
    "optimizers_of", [embeddings.sgd, embeddings.adagrad, embeddings.sparse_adam], ids=lambda one: one.__name__
)
def test_one_lane_has_the_bits_of_the_plain_loop(optimizers_of):
    [found] = run_ranks(embeddings.trained_sparsely, Started(1), optimizers_of, 1, float("inf"))
    [plain] = run_ranks(plainly, Started(1), optimizers_of)
    assert found["model"] == plain
    assert found["layouts"] == ["torch.sparse_coo"]


def kept_over_steps(place, stop_after=None):
    """Two passes for each update, by optimizers that update rows only; a state after every step."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, name="kept", save_every="1steps")
    model = nn.ModuleDict({name: nn.Embedding(500, 8, sparse=True) for name in ("first", "second")})
    optimizers = [
        torch.optim.SparseAdam([model["first"].weight], lr=0.1),
        torch.optim.Adagrad([model["second"].weight], lr=0.1),
    ]
    loader = DataLoader(digits(96), batch_size=16, shuffle=True)
    model, loader, *optimizers = run.prepare(model, loader, *optimizers)
    for _ in run.epochs(1):
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return "stopped"
            for images, _ in step:
                words = embeddings.words_of(images, 500)
                run.backward((model["first"](words) * model["second"](words // 3)).tanh().sum() * 0.01)
            if step.number % 3 == 0:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
    return digest_of(model, *optimizers)


def test_sparse_gradients_that_are_kept_over_steps_are_sparse_in_a_run_that_goes_on(tmp_path):
    for name in ("straight", "stopped"):
        (tmp_path / name).mkdir()
    [straight] = run_ranks(kept_over_steps, Started(1), str(tmp_path / "straight"))
    assert run_ranks(kept_over_steps, Started(2), str(tmp_path / "stopped"), 4) == ["stopped"] * 2
    assert run_ranks(kept_over_steps, Started(2), str(tmp_path / "stopped")) == [straight] * 2
