"""Where each rank holds only some layers, files still hold everything, and each rank takes what is its own."""

import hashlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.rank.checkpoint.store import save
from samebits.rank.run import ending
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def trained():
    run = samebits.init(seed=0, lanes=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(scenarios.digits(64), batch_size=32)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return run, model, optimizer


def spread(run, model, optimizer):
    """Leave each rank its own layers: rank 0 the first linear one, rank 1 the rest; as a strategy of stages does."""
    holders = {
        id(tensor): 0 if name.startswith("1.") else 1 for name, tensor in model.state_dict(keep_vars=True).items()
    }
    run._run.components.strategy.close()  # a parameter that is watched cannot be exchanged
    for module in model.modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if holders[id(tensor)] != run.rank:
                empty = torch.empty_like(tensor, device="meta")
                optimizer.state.pop(tensor, None)
                if isinstance(tensor, nn.Parameter):
                    torch.utils.swap_tensors(tensor, nn.Parameter(empty))
                else:
                    holders[id(empty)] = 1 - run.rank
                    module._buffers[name] = empty
    run._run.components.strategy.holder_of = lambda tensor: holders.get(id(tensor))
    save.bits_held = ending.bits_held = lambda _run: ""  # these ranks are no replicas of each other


def hashes(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).iterdir()
        if path.suffix == ".safetensors"
    }


def saving(folder):
    run, model, optimizer = trained()
    run.save_weights(model, f"{folder}/whole.safetensors")
    run.save_state(f"{folder}/whole")
    spread(run, model, optimizer)
    own = sum(not parameter.is_meta for parameter in model.parameters())
    run.save_weights(model, f"{folder}/spread.safetensors")
    run.save_state(f"{folder}/spread")
    run._run.loop_state.prepared.models.clear()  # nothing to hash at the end
    return own


def loading(folder, is_spread):
    run, model, optimizer = trained()
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    moments = digest_of(optimizer)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    if is_spread:
        spread(run, model, optimizer)
        optimizer.state.clear()
    run.load_state(f"{folder}/spread")
    held = {name: value for name, value in model.state_dict().items() if not value.is_meta}
    assert all(torch.equal(value, whole[name]) for name, value in held.items())
    assert is_spread or moments == digest_of(optimizer)
    alone = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    samebits.load_weights(alone, f"{folder}/spread")
    assert all(torch.equal(value, whole[name]) for name, value in alone.state_dict().items())
    run._run.loop_state.prepared.models.clear()
    return list(held), [name for name, parameter in model.named_parameters() if optimizer.state.get(parameter)]


@promise(
    "save-and-resume",
    "States go by the names of parameters, have the same bytes from ranks that hold different layers, and "
    "every value comes back with its type and its bits; what would need pickle is refused by its path",
    also=["test_groups_and_parameters_may_come_in_another_order", "test_every_value_comes_back_exactly"],
)
def test_a_spread_model_is_saved_whole_and_each_rank_loads_its_own(tmp_path):
    assert run_ranks(saving, Started(2), str(tmp_path)) == [2, 4]
    assert hashes(tmp_path)["whole.safetensors"] == hashes(tmp_path)["spread.safetensors"]
    assert hashes(tmp_path / "whole") == hashes(tmp_path / "spread")
    assert set(hashes(tmp_path / "whole")) == {"model.safetensors", "optimizer.safetensors", "state.safetensors"}
    first = ["1.weight", "1.bias"]
    rest = ["2.weight", "2.bias", "2.running_mean", "2.running_var", "2.num_batches_tracked", "4.weight", "4.bias"]
    of_rest = ["2.weight", "2.bias", "4.weight", "4.bias"]
    assert run_ranks(loading, Started(2), str(tmp_path), True) == [(first, first), (rest, of_rest)]
    assert run_ranks(loading, Started(2), str(tmp_path), False) == [(first + rest, first + of_rest)] * 2
