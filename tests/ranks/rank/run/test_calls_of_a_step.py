"""What a step costs whatever the model is, by what no busy machine changes: calls of functions, but for torch's own."""

import pytest

from tests.support.launching import start_python, write_script

pytestmark = pytest.mark.ranks
MOST_CALLS, MOST_FILES = 349, 48
"""Of one backward. They only fall."""
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


TRIPS = """
    import sys
    import torch
    from pathlib import Path
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    PACKAGE = str(Path(samebits.__file__).parent)
    run = samebits.init(seed=0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(256, 32), torch.randint(0, 10, (256,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))
    calls, counted = [], []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls.append(frame.f_code.co_filename)

    for epoch in run.epochs(2):
        for step in run.steps(loader):
            calls.clear()
            sys.setprofile(count)
            step.backward(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
            sys.setprofile(None)
            counted.append((len(calls), len(set(calls))))
            optimizer.step()
            optimizer.zero_grad()
    if run.rank == 0:
        print("trip", *min(counted[4:]), flush=True)
"""


def test_a_backward_makes_no_more_trips_through_the_package_than_this(tmp_path):
    """A small model, 2 ranks, 2 lanes each: calls of the package's functions, and the files in which they are. In the
    step that has the fewest: some compare bits, some wait for the other rank or for a snapshot's writer."""
    ended = start_python(
        tmp_path, *("-m", "samebits", "run", "-n", "2", "--lanes", "4", write_script(tmp_path, TRIPS))
    ).finish()
    assert ended.code == 0, ended.err
    [words] = [line.split() for line in ended.out.splitlines() if "trip " in line]
    calls, files = map(int, words[-2:])
    assert calls <= MOST_CALLS
    assert files <= MOST_FILES, "of FSDP2 a backward of 4 groups makes 811 calls in 10 files"
