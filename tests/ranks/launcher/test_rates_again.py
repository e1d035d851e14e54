"""A rate that a restart would change silently ends the run at the first step that is computed again."""

import pytest

from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, signal, torch, torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=1, lanes=4, threads=1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    calls = [0]
    for step in run.steps(loader, epochs=1):
        for inputs, targets in step:
            run.backward(F.mse_loss(model(inputs), targets))
        calls[0] += 1
        optimizer.param_groups[0]["lr"] = 0.1 / KEEPS
        optimizer.step()
        optimizer.zero_grad()
        run.mean(step.loss)
        if step.number == 5 and run.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@promise("save-and-resume", "A step that is computed again with another rate ends the run")
@pytest.mark.parametrize(("keeps", "code"), [("calls[0]", 2), ("step.number", 0)])
def test_a_rate_that_follows_from_what_no_state_holds_ends_the_run(tmp_path, keeps, code):
    # No rank holds the whole state, so steps since the newest one on the disk are computed again.
    options = ("-n", "2", "--strategy", "zero1", "--name", "exp1", "--save-every", "2steps", "--snapshots", "off")
    ended = run_script(tmp_path, SCRIPT.replace("KEEPS", keeps), *options)
    assert ended.code == code, ended.err
    assert ("is computed again with another rate than the first time" in ended.err) == bool(code)
