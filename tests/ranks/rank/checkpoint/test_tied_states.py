"""A tensor of several names is in a state once, whatever had or has the names apart."""

import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.protocol.layout.mesh import Form
from samebits.rank.checkpoint.weights.export import export
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


class Words(nn.Module):
    """The head is the embedding, or not."""

    def __init__(self, is_tied):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 20, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, text):
        return self.head(self.words(text))


def trained(run, model, is_trained=True):
    """The model, and the optimizer, which has a state after two steps."""
    optimizer = torch.optim.AdamW(model.parameters() if is_trained else [model.words.weight], lr=0.01)
    data = DataLoader(TensorDataset(torch.arange(16)), batch_size=8)
    model, optimizer, data = run.prepare(model, optimizer, data)
    for _ in run.epochs(1):
        for step in run.steps(data):
            step.backward(lambda batch: model(batch[0]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


def saves(place):
    os.chdir(place)
    run = samebits.init(seed=1, lanes=2, threads=1, name="exp1", save_every="2steps")
    model, optimizer = trained(run, Words(True))
    run.save_state("now")
    run.save_weights(model, "w.safetensors")
    samebits.finish()
    return digest_of(model, optimizer) if run.world_size == 1 else ""


def loads(path, is_tied, is_trained):
    run = samebits.init(seed=1, lanes=2, threads=1)
    model, optimizer = Words(is_tied), None
    if is_trained:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        data = DataLoader(TensorDataset(torch.arange(16)), batch_size=8)
        model, optimizer, _ = run.prepare(model, optimizer, data)
    else:
        model = run.prepare(model)
    before = digest_of(model)
    try:
        run.load_state(path)
    except samebits.UsageError as error:
        return digest_of(model) == before, str(error)
    return digest_of(model, optimizer) if is_trained else digest_of(model), torch.equal(
        model.words.weight, model.head.weight
    )


def names_in(path):
    with safe_open(path, framework="pt") as file:
        return [*file.keys()], file.metadata()


@promise(
    "files",
    "Tied weights are in a state once; a script that ties them no longer, or only now, gets what was "
    "saved or is refused with one sentence; older states with both names are loaded",
    also=[
        "test_a_script_whose_weights_are_no_longer_tied_gets_each_value_and_one_with_its_optimizer_is_refused",
        "test_a_script_whose_weights_are_now_tied_is_refused_where_they_have_different_values",
        "test_an_older_state_that_has_tied_weights_twice_is_loaded",
    ],
)
@pytest.mark.parametrize(
    "started",
    [
        Started(1),
        Started(2),
        *(pytest.param(Started(2, form=Form(one)), marks=pytest.mark.thorough) for one in ("zero1", "pipeline")),
    ],
    ids=["alone", "ddp", "zero1", "pipeline"],
)
def test_tied_weights_are_in_a_state_once_and_in_a_file_of_weights_under_each_name(tmp_path, started):
    digest = run_ranks(saves, started, str(tmp_path))[0]
    [aside] = tmp_path.glob("samebits-runs/exp1/states/step-*")
    for place in (tmp_path / "now", aside):
        names, told = names_in(place / "model.safetensors")
        assert (names, told) == (["words.weight"], {"format": "pt", "head.weight": "words.weight"})
        moments, _ = names_in(place / "optimizer.safetensors")
        assert [name for name in moments if "exp_avg/" in name] == ["exp_avg/words.weight"]
    Words(True).load_state_dict(load_file(tmp_path / "w.safetensors"))
    if digest:
        assert run_ranks(loads, Started(1), str(tmp_path / "now"), True, True) == [(digest, True)]
        model = Words(False)
        samebits.load_weights(model, tmp_path / "now")
        assert torch.equal(model.head.weight, model.words.weight)


def test_a_state_of_tied_weights_is_exported_under_each_name(tmp_path):
    run_ranks(saves, Started(1), str(tmp_path))
    for name in ("net.safetensors", "net.pt"):
        export(tmp_path / "now", tmp_path / name, None, force=False)
    for found in (load_file(tmp_path / "net.safetensors"), torch.load(tmp_path / "net.pt", weights_only=True)):
        Words(True).load_state_dict(found)
    assert found["head.weight"].data_ptr() == found["words.weight"].data_ptr()


def only_model(place, is_tied):
    run = samebits.init(seed=1, lanes=2, threads=1)
    model = run.prepare(Words(is_tied))
    run.save_checkpoint(place)
    return digest_of(model)


def test_a_script_whose_weights_are_no_longer_tied_gets_each_value_and_one_with_its_optimizer_is_refused(tmp_path):
    run_ranks(only_model, Started(1), str(tmp_path / "tied"), True)
    assert run_ranks(loads, Started(1), str(tmp_path / "tied"), False, False)[0][1] is True
    run_ranks(saves, Started(1), str(tmp_path))
    [(is_unchanged, told)] = run_ranks(loads, Started(1), str(tmp_path / "now"), False, True)
    assert is_unchanged
    assert "head.weight is not in the state" in told


def test_a_script_whose_weights_are_now_tied_is_refused_where_they_have_different_values(tmp_path):
    run_ranks(only_model, Started(1), str(tmp_path / "apart"), False)
    [(is_unchanged, told)] = run_ranks(loads, Started(1), str(tmp_path / "apart"), True, False)
    assert is_unchanged
    assert "head.weight and words.weight of model are one tensor in this script" in told


def both_names(place):
    """As earlier versions saved it."""
    run = samebits.init(seed=1, lanes=2, threads=1)
    model = Words(False)
    with torch.no_grad():
        model.head.weight.copy_(model.words.weight)
    run.prepare(model)
    run.save_state(place)


def test_an_older_state_that_has_tied_weights_twice_is_loaded(tmp_path):
    run_ranks(both_names, Started(1), str(tmp_path / "old"))
    assert names_in(tmp_path / "old" / "model.safetensors")[0] == ["head.weight", "words.weight"]
    assert run_ranks(loads, Started(1), str(tmp_path / "old"), True, False)[0][1] is True
