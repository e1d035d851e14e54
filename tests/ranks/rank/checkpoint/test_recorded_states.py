"""`--record-states`: of a run that is recorded a few older states stay, spread over the run, through kills and resumes."""

import json
import subprocess
import sys

import pytest

from samebits.protocol.saving import spread
from tests.support.launching import run_script

pytestmark = pytest.mark.ranks
SCRIPT = """
    import os, signal, sys, torch, samebits

    run = samebits.init(seed=0, lanes=2, threads=1, **({"name": "exp1", "save_every": "1steps"} if "own" in sys.argv else {}))
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            if os.environ.get("STOPS") == str(step.number):
                raise SystemExit(3)
            step.backward(lambda batch: model(batch[0]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""
EVERY = ("--name", "exp1", "--save-every", "1steps")


def steps_of(place):
    return [int(path.name[5:]) for path in sorted((place / "samebits-runs/exp1/states").glob("step-*"))]


def expected(keep, others):
    """What stays after each step saved a state."""
    stay = []
    for step in range(1, 21):
        stay = spread([*stay, step], keep, others)
    return stay


@pytest.mark.parametrize(
    ("options", "args", "keep", "others"),
    [
        (("--record", "--record-states", "3", "--keep", "2", *EVERY), [], 2, 3),
        (("--record", "--keep", "1", *EVERY), [], 1, 8),
        (("--record", "--record-states", "0", *EVERY), [], 3, 0),
        (EVERY, [], 3, 0),
        (("--record", "--record-states", "1"), ["own"], 3, 1),
    ],
)
def test_older_states_stay_spread_over_a_run_that_is_recorded(tmp_path, options, args, keep, others):
    ended = run_script(tmp_path, SCRIPT, "-n", "2", *options, args=args)
    assert ended.code == 0, ended.err
    assert steps_of(tmp_path) == expected(keep, others)


def test_a_run_that_goes_on_keeps_the_states_of_its_earlier_starts(tmp_path):
    options = ("--record", "--record-states", "3", "--keep", "2", "--recover", "off", *EVERY)
    for stops in ("8", "15", ""):
        ended = run_script(tmp_path, SCRIPT, *options, env={"STOPS": stops})
        assert ended.code == (3 if stops else 0), ended.err
    assert steps_of(tmp_path) == expected(2, 3)
    shown = subprocess.run(
        [sys.executable, "-m", "samebits", "record", "show", "exp1", "--json"], cwd=tmp_path, capture_output=True
    )
    found = json.loads(shown.stdout)
    assert [one["step"] for one in found["states"]] == steps_of(tmp_path)
    assert (shown.returncode, found["last"], len(found["starts"])) == (0, 20, 3)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--record-states", "3", *EVERY), "--record-states is about the states of a run with --record."),
        (("--record", "--record-states", "-1", *EVERY), "--record-states must be at least 0, but is -1."),
    ],
)
def test_options_that_cannot_be_start_nothing(tmp_path, options, why):
    ended = run_script(tmp_path, SCRIPT, *options)
    assert ended.code == 2
    assert why in ended.err
    assert not (tmp_path / "samebits-runs").exists()
