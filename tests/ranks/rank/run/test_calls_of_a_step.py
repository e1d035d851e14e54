"""What a step costs whatever the model is, by what no busy machine changes: calls of functions, but for torch's own."""

import pytest

from tests.support.launching import start_python, write_script

pytestmark = pytest.mark.ranks
SCRIPT = """
    import sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits
    from samebits.rank.caller import TORCH

    run = samebits.init(seed=0, lanes=2)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(int(sys.argv[1]))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.randn(240, 16), torch.randn(240, 16)), batch_size=8)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    counted, calls = [], 0

    def count(frame, event, _):
        global calls
        calls += event in ("call", "c_call") and not frame.f_code.co_filename.startswith((TORCH, __file__))

    for epoch in run.epochs(1):
        for step in run.steps(loader):
            counted.append(calls)
            for x, y in step:
                run.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if step.index == 10:
                sys.setprofile(count)
    sys.setprofile(None)
    of_steps = [later - earlier for earlier, later in zip(counted[12:], counted[13:])]
    if run.rank == 0:
        print("calls", min(of_steps), flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("layers", [4, 40])
@pytest.mark.parametrize(("strategy", "most"), [("ddp", 1010), ("zero1", 1260)])
def test_a_step_of_two_ranks_makes_no_more_calls_than_this_however_many_parameters_there_are(
    tmp_path, strategy, most, layers
):
    """In the step that has the fewest: some steps compare what ranks hold, too."""
    command = ("-m", "samebits", "run", "-n", "2", "--strategy", strategy, write_script(tmp_path, SCRIPT), str(layers))
    ended = start_python(tmp_path, *command).finish()
    assert ended.code == 0, ended.err
    [calls] = [int(line.split()[-1]) for line in ended.out.splitlines() if "calls" in line]
    assert calls <= most
