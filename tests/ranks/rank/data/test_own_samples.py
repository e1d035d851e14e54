"""A data set whose samples depend on those fetched before is named with its line, whoever fetches; then again beside the bits."""

import pytest

from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

SCRIPT = """
import random, samebits, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler
class Noise:
    def __init__(self): self.rng = random.Random(5)
    def __call__(self, v): return v + {noise}
class Numbers(Dataset):
    def __init__(self): self.transform = Noise()
    def __len__(self): return 32
    def __getitem__(self, i): return self.transform(torch.full((4,), i / 32)), torch.tensor(i % 2)
class Order(Sampler):
    def __init__(self): self.g = torch.Generator()
    def __len__(self): return {taken}
    def __iter__(self):
        self.g.manual_seed(3)
        yield from torch.randperm(32, generator=self.g)[:{taken}].tolist()
run = samebits.init(seed=0, lanes=4, threads=1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Numbers(), batch_size=8, sampler=Order(), num_workers={workers})
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        step.backward(lambda b: F.cross_entropy(model(b[0]), b[1]))
        optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_generator_of_the_data_set_s_own_is_named(tmp_path, workers, ranks):
    script = SCRIPT.format(noise="self.rng.random()", taken=32, workers=workers)
    done = run_script(tmp_path, script, "-n", str(ranks))
    assert "script.py:6: fetching samples changes Numbers.transform.rng" in done.err
    assert "depend on Numbers.transform.rng (script.py:6)" in done.out + done.err
    assert "no state holds" not in done.err
    assert "every sample once" in done.out + done.err


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.thorough
def test_the_global_streams_and_a_sampler_s_generator_are_not(tmp_path, workers):
    script = SCRIPT.format(noise="random.random() + random.Random(7).random()", taken=16, workers=workers)
    ends = [run_script(tmp_path, script, "-n", ranks) for ranks in ("1", "2")]
    assert ends[0].bits == ends[1].bits
    text = "".join(one.out + one.err for one in ends)
    assert "fetching samples" not in text
    assert "depend on" not in text
    assert "every sample once" not in text, "half of them came"
