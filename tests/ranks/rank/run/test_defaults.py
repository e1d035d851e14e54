"""Lanes and threads that nobody names: the same bits on 1 to 4 ranks, and those of the state where a run resumes."""

import os

import pytest

from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import sys
    import samebits, torch
    from samebits.testing.digests import digest_of
    run = samebits.init()
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    inputs = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            if step.number > int(sys.argv[1]):
                sys.exit()
            step.backward(lambda batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
    if run.is_main:
        print(digest_of(model, optimizer), torch.get_num_threads())
"""


def trained(place, *options, steps=99):
    place.mkdir(exist_ok=True)
    finished = run_script(place, SCRIPT, *options, args=(str(steps),))
    assert finished.code == 0, finished.err
    return finished.out, finished.err


@promise(
    "same-bits",
    "A script that names neither lanes nor threads has the same bits on 1, 2, 3 and 4 ranks of a machine, "
    "and a run that resumes keeps those of its state",
    also=[
        "test_a_run_that_resumes_keeps_the_lanes_and_threads_of_its_state",
        "test_one_to_four_ranks_have_the_same_lanes_and_threads_where_lanes_move",
    ],
)
def test_a_script_that_names_nothing_has_the_same_bits_on_one_to_four_ranks(tmp_path):
    results = [trained(tmp_path / str(ranks), "-n", str(ranks)) for ranks in (1, 2, 3, 4)]
    assert len({out for out, _ in results}) == 1
    assert "(default; one rank alone is faster with lanes=1" in results[0][1]
    assert all("(default; lanes= changes it)" in err for _, err in results[1:])
    assert trained(tmp_path / "5", "-n", "5")[0] != results[0][0], "that has 5 lanes"


@pytest.mark.thorough
def test_a_run_that_resumes_keeps_the_lanes_and_threads_of_its_state(tmp_path):
    threads = len(os.sched_getaffinity(0))
    named, saves = ("--lanes", "3", "--threads", str(threads)), ("--name", "exp1", "--save-every", "2steps")
    undisturbed, _ = trained(tmp_path / "undisturbed", "-n", "1", *named)
    place = tmp_path / "resumed"
    trained(place, "-n", "1", *named, *saves, steps=5)
    out, err = trained(place, "-n", "2", *saves)
    assert out == undisturbed
    assert "3 lanes and" in err
    assert "as in step-00000004, from which the run resumes" in err
    assert "the bits may differ" not in err


@pytest.mark.thorough
def test_more_ranks_than_lanes_of_the_state_take_the_default(tmp_path):
    saves = ("--name", "exp1", "--save-every", "2steps")
    trained(tmp_path, "-n", "1", "--lanes", "1", *saves, steps=5)
    _, err = trained(tmp_path, "-n", "2", *saves)
    assert "resumes with lanes 4, not 1" in err
