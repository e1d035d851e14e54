"""`if run.is_main:` around a collective call is one sentence with both lines, before anything is written."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def parts():
    run = samebits.init(seed=0, lanes=2)
    model = nn.Linear(8, 3)
    loader = DataLoader(TensorDataset(torch.randn(16, 8), torch.randint(0, 3, (16,))), batch_size=8)
    model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    return run, model, optimizer, loader


def evaluation(run, model, loader):
    tally = run.tally()
    for inputs, labels in loader:
        tally.add(loss=F.cross_entropy(model(inputs), labels))
    return tally.mean()


CALLS = {
    "run.save_weights": lambda run, model, loader, path: run.save_weights(model, path),
    "run.save_state": lambda run, model, loader, path: run.save_state(path),
    "run.load_state": lambda run, model, loader, path: run.load_state(path),
    "run.barrier": lambda run, model, loader, path: run.barrier(),
    "log": lambda run, model, loader, path: run.log(mine=1.0),
    "tally.mean": lambda run, model, loader, path: evaluation(run, model, loader),
}
NEXT = {
    "run.steps": lambda run, model, loader: next(iter(run.steps(loader))),
    "run.mean": lambda run, model, loader: run.mean(1.0),
}


def guarded(call, following, path):
    run, model, _, loader = parts()
    if run.is_main:
        CALLS[call](run, model, loader, path)
    if following:
        NEXT[following](run, model, loader)


@promise(
    "files",
    "`if run.is_main:` around a call of all ranks is one sentence with both lines on every rank, and "
    "nothing is written",
)
@pytest.mark.parametrize(
    ("call", "following"),
    [
        ("run.save_weights", "run.steps"),
        ("run.save_state", "run.mean"),
        ("tally.mean", ""),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                *((call, "run.steps") for call in CALLS if call != "run.save_weights"),
                ("run.save_weights", ""),
                ("run.save_state", ""),
            )
        ),
    ],
)
def test_a_guarded_call_is_one_sentence_with_both_lines(tmp_path, call, following):
    with pytest.raises(RankFailed) as caught:
        run_ranks(guarded, Started(2, timeout_s=30), call, following, str(tmp_path / "file"))
    assert caught.value.error_type == "UsageError"
    message = caught.value.message
    assert f"rank 0 is at '{call}' (test_guards.py:" in message
    other = f"rank 1 is at '{following}' (test_guards.py:" if following else "rank 1 is at 'the end of the script'"
    assert other in message
    assert "take them out of `if run.is_main:`" in message
    assert list(tmp_path.iterdir()) == []


def guarded_load(path):
    """A call that needs no other rank may be guarded, but then the models differ, which is found."""
    run, model, _, loader = parts()
    run.save_weights(model, path)
    if run.is_main:
        torch.nn.init.zeros_(model.weight)
        samebits.load_weights(model, path)
        samebits.load_weights(nn.Linear(8, 3), path)
    return [step.number for step in run.steps(loader) if step.backward(lambda b: model(b[0]).sum()) is None]


def test_loading_weights_needs_no_other_rank(tmp_path):
    assert run_ranks(guarded_load, Started(2), str(tmp_path / "w.safetensors")) == [[1, 2], [1, 2]]


def test_a_guarded_save_ends_a_script_with_exit_code_2(tmp_path):
    finished = run_script(
        tmp_path,
        """
        import torch, samebits
        run = samebits.init(seed=0, lanes=2)
        model = run.prepare(torch.nn.Linear(2, 2))
        if run.is_main:
            run.save_weights(model, "w.safetensors")
        """,
        "-n",
        "2",
    )
    assert finished.code == 2
    assert "rank 0 is at 'run.save_weights' (script.py:6)" in finished.err
    assert "rank 1 is at 'the end of the script'" in finished.err
    assert not (tmp_path / "w.safetensors").exists()
