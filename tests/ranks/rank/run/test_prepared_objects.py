"""What `prepare` gives back is what it got: the model can be saved, copied, loaded and changed as ever."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def prepared(model=None):
    run = samebits.init(seed=0, lanes=4)
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(scenarios.digits(64), batch_size=32)
    return (run, *run.prepare(model, optimizer, loader))


def steps(run, model, optimizer, loader, between=lambda: None):
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        between()
    return digest_of(model)


def same_objects():
    run = samebits.init(lanes=2)
    model = scenarios.Cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(scenarios.digits(), batch_size=32, num_workers=0, drop_last=True)
    keys, parameters = list(model.state_dict()), list(model.parameters())
    one, two, three, four = run.prepare(model, optimizer, scheduler, loader)
    assert one is model
    assert two is optimizer
    assert three is scheduler
    assert isinstance(four, DataLoader)
    assert four is not loader
    assert (four.dataset, four.batch_size, four.drop_last) == (loader.dataset, 32, True)
    assert len(four) == len(loader)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    return type(model).__name__


def test_prepare_gives_back_the_same_objects():
    assert run_ranks(same_objects, Started(2)) == ["Cnn", "Cnn"]


def size_of(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.tell()


def saving():
    model = prepared()[1]
    bias = size_of(model[3].bias)
    whole = size_of(model)
    copied = copy.deepcopy(model)
    before = digest_of(model)
    with torch.no_grad():
        copied[1].weight.zero_()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    return bias, whole, digest_of(model) == before, digest_of(loaded) == before


def test_a_saved_part_is_small_and_copies_are_their_own():
    for bias, whole, untouched, loaded in run_ranks(saving, Started(2)):
        assert bias < 3_000
        assert 150_000 < whole < 200_000
        assert untouched
        assert loaded


def loading():
    run, model, optimizer, loader = prepared()
    other = {name: torch.full_like(value, 0.01) for name, value in model.state_dict().items()}
    first = steps(run, model, optimizer, loader, lambda: model.load_state_dict(other))
    return first, steps(run, model, optimizer, loader)


def moved_values():
    """p.data = …, share_memory and channels of another stride move a parameter; training goes on with its values."""
    run, model, optimizer, loader = prepared()

    def move():
        model[1].weight.data = model[1].weight.data.clone()
        model[3].share_memory()
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) * 0.9, model.parameters())

    return steps(run, model, optimizer, loader, move), steps(run, model, optimizer, loader)


def other_strides():
    run, model, optimizer, loader = prepared()
    first = steps(run, model, optimizer, loader)
    model[3].weight.data = model[3].weight.data.t().contiguous().t()
    strides = model[3].weight.stride()
    return first, steps(run, model, optimizer, loader), strides == model[3].weight.stride() == (1, 10)


def new_layer():
    run, model, optimizer, loader = prepared()
    first = steps(run, model, optimizer, loader)
    model.append(nn.Linear(10, 10))
    optimizer.add_param_group({"params": list(model[4].parameters()), "lr": 0.1})
    second = steps(run, model, optimizer, loader)
    return first, second, model[4].weight.grad is None, digest_of(optimizer)


def halved():
    run, model, optimizer, loader = prepared()
    steps(run, model, optimizer, loader)
    model.bfloat16()
    for state in optimizer.state.values():
        state.update({k: v.bfloat16() for k, v in state.items() if k.startswith("exp")})
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0].bfloat16()).float(), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model), str(model[1].weight.dtype)


@promise(
    "same-bits",
    "A model may be loaded into, moved, extended or changed in dtype after `prepare`",
)
@pytest.mark.parametrize("change", [loading, moved_values, other_strides, new_layer, halved], ids=lambda f: f.__name__)
def test_a_model_may_change_after_prepare(change):
    [alone] = run_ranks(change, Started(1))
    for result in run_ranks(change, Started(3)):
        assert result == alone


def assigned():
    run, model, optimizer, loader = prepared()
    other = {name: torch.full_like(value, 0.01) for name, value in model.state_dict().items()}
    steps(run, model, optimizer, loader, lambda: model.load_state_dict(other, assign=True))


def test_replaced_parameters_are_one_sentence():
    with pytest.raises(RankFailed, match=r"'1.weight' was replaced by another object after run.prepare"):
        run_ranks(assigned, Started(2))


def started_twice():
    """A notebook cell that failed in a lane and is run again with the same model and optimizer."""
    run, model, optimizer, loader = prepared()
    try:
        for step in run.steps(loader):
            for _ in step:
                raise ValueError
    except ValueError:
        pass
    run = samebits.init(seed=0, lanes=4)
    model, optimizer = run.prepare(model, optimizer)
    return steps(run, model, optimizer, run.prepare(DataLoader(scenarios.digits(64), batch_size=32)))


def test_a_cell_that_failed_can_be_run_again():
    assert len(set(run_ranks(started_twice, Started(2)))) == 1


def held_gradient():
    """A gradient that the script keeps is not overwritten by later steps."""
    run, model, optimizer, loader = prepared()
    kept = []
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        kept.append((model[1].weight.grad, model[1].weight.grad.clone()))
        kept.append((model[3].weight.grad.detach().view(-1), model[3].weight.grad.flatten().clone()))
        optimizer.step()
        optimizer.zero_grad()
    return all(torch.equal(gradient, then) for gradient, then in kept)


@promise(
    "same-bits",
    "A gradient that the script keeps is not overwritten; views of parameters and buffers taken before "
    "`prepare` keep showing them, or (`hogwild`, stages) are refused",
    also=["test_views_of_parameters_and_buffers_still_show_them", "test_where_memory_has_to_move_it_is_one_sentence"],
)
def test_a_gradient_that_the_script_keeps_stays():
    assert all(run_ranks(held_gradient, Started(2)))


def weights_round_trip(path):
    run, model, optimizer, loader = prepared(scenarios.Tied())
    steps(run, model, optimizer, loader)
    run.save_weights(model, path)
    other = scenarios.Tied()
    samebits.load_weights(other, path)
    return digest_of(model) == digest_of(other)


@promise(
    "files",
    "`run.save_weights` writes plain safetensors with single-device keys, atomically; what cannot be "
    "written raises on every rank",
    also=["test_what_cannot_be_written_raises_on_every_rank"],
)
def test_weights_are_plain_safetensors_with_single_device_keys(tmp_path):
    from safetensors.torch import load_file

    path = tmp_path / "deep" / "tied.safetensors"
    assert all(run_ranks(weights_round_trip, Started(2), str(path)))
    model = scenarios.Tied()
    model.load_state_dict(load_file(path))
    assert [entry.name for entry in path.parent.iterdir()] == ["tied.safetensors"]


def unwritable(path):
    run, model, _, _ = prepared()
    said = []
    for save in (lambda: run.save_weights(model, path), lambda: run.save_state(path)):
        try:
            save()
        except samebits.EnvironmentFailure as error:
            said.append(str(error))
    return said


def test_what_cannot_be_written_raises_on_every_rank(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for messages in run_ranks(unwritable, Started(2), str(tmp_path / "file" / "w.safetensors")):
        assert ["could not be written" in message for message in messages] == [True, True]
