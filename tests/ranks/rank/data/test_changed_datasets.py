"""Attributes of a data set that the script changes: between epochs workers see them, inside one a sentence takes the claim away."""

import pytest

from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import sys, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
import samebits
how, workers = sys.argv[1], int(sys.argv[2])
class Boxes(Dataset):
    def __init__(self): self.size, self.fetched = 16, 0
    def __len__(self): return 48
    def __getitem__(self, i):
        self.fetched += 1
        return F.interpolate(torch.sin(torch.arange(256.0) * (1 + i % 9)).view(1, 1, 16, 16), self.size)[0], i % 3
run = samebits.init(seed=0, lanes=4, threads=1)
data = Boxes()
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3))
loader = DataLoader(torch.utils.data.Subset(data, range(40)), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=how == "persistent")
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for epoch in run.epochs(2):
    EACH EPOCH
    for step in run.steps(loader):
        EACH STEP
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
        optimizer.step(); optimizer.zero_grad()
"""


def ran(tmp_path, how, workers, ranks="1"):
    folder = tmp_path / f"{how}-{workers}-{ranks}"
    folder.mkdir()
    in_step, in_epoch = "if step.number > 4: data.size = 24", "data.size = (16, 24)[epoch]"
    each = ("pass", in_step) if how == "step" else (in_epoch, "pass")
    script = SCRIPT.replace("EACH EPOCH", each[0]).replace("EACH STEP", each[1])
    finished = run_script(folder, script, "-n", ranks, args=(how, str(workers)))
    assert finished.code == 0, finished.err
    return finished


@promise(
    "samples",
    "Attributes of a data set that change between epochs are seen by workers, and one that changes "
    "inside an epoch takes the claim away",
    also=["test_what_changes_inside_an_epoch_is_told_at_its_line_and_takes_the_claim_away"],
)
def test_what_changes_between_epochs_is_seen_by_workers(tmp_path):
    runs = [ran(tmp_path, "epoch", workers, ranks) for workers, ranks in ((0, "1"), (2, "1"), (2, "2"))]
    assert len({one.bits for one in runs}) == 1
    assert not any("data set's size" in one.err or "data set's fetched" in one.err for one in runs[1:])
    assert "the data set's size was changed" not in runs[0].err


@pytest.mark.parametrize(("how", "workers", "line"), [("step", 0, 20), ("step", 2, 20), ("persistent", 2, 18)])
def test_what_changes_inside_an_epoch_is_told_at_its_line_and_takes_the_claim_away(tmp_path, how, workers, line):
    finished = ran(tmp_path, how, workers)
    assert finished.err.count("the data set's size was changed inside an epoch, and loader workers hold copies") == 1
    assert f"script.py:{line}: the data set's size was changed" in finished.err
    assert "of these loader workers alone: the data set's size was changed inside an epoch" in finished.err
