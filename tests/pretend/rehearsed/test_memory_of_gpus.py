"""Models that nearly fill a GPU, or that none can hold: what `prepare` and the first steps take of its memory.

Most parameters are frozen, as in fine-tuning: so the parameters themselves are what fills the card.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.protocol.layout.mesh import Form
from samebits.rank.run.ending import state_hash
from samebits.testing.ranks import Started, run_ranks

pytestmark = pytest.mark.ranks
WIDTH, LAYERS = 256, 16
BODY_BYTES = LAYERS * WIDTH * (WIDTH + 1) * 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, values):
        return values + F.dropout(self.linear(values).relu(), 0.1, self.training)


class Tall(nn.Module):
    """The first layer's bias is used again at the end; one block is computed again in the backward."""

    def __init__(self, trains):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.blocks.requires_grad_(trains)
        self.drop, self.norm, self.head = nn.Dropout(0.1), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, values):
        for number, block in enumerate(self.blocks):
            values = checkpoint(block, values, use_reentrant=False) if number == 4 else block(values)
        values = self.drop(values) + self.blocks[0].linear.bias
        return self.head(self.norm(values))


def train(cards, trains=False, kind="SGD"):
    """Train on GPUs of which this many would hold the model's body; tell bits, and peaks per byte of the model."""
    run = samebits.init(seed=0, lanes=2)
    device = run.device
    for index in range(torch.cuda.device_count()):
        torch.ops.pretend.limit_memory(index, int(BODY_BYTES / cards))
    model = Tall(trains)
    size = sum(one.nbytes for one in model.parameters())
    optimizer = getattr(torch.optim, kind)([one for one in model.parameters() if one.requires_grad], lr=0.01)
    values = torch.randn(16, WIDTH)
    loader = DataLoader(TensorDataset(values, values[:, :4].argmax(1)), batch_size=8, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    peaks = [torch.cuda.max_memory_allocated(device) / size]
    with torch.no_grad():
        for inputs, labels in loader:
            F.cross_entropy(model(inputs), labels)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    peaks.append(torch.cuda.max_memory_allocated(device) / size)
    is_whole = run.world_size > 1 and run._run.config.mesh.stages == 1
    return "" if is_whole else state_hash(run._run), step.loss.hex(), peaks


def once(cards, trains=False, kind="SGD", ranks=1, strategy=None):
    return run_ranks(train, Started(ranks, lanes=2, form=Form(strategy)), cards, trains, kind)


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("ddp", 2), ("zero1", 2)])
def test_prepare_takes_the_memory_of_the_parameters_once(strategy, ranks):
    for _, _, (prepared, trained) in once(0.8, strategy=strategy, ranks=ranks):
        assert prepared < 1.1
        assert trained < 1.3


@pytest.mark.parametrize(
    ("strategy", "ranks", "trains", "kind", "cards"),
    [
        ("model_parallel", 2, False, "Adagrad", 1.6),
        ("model_parallel", 1, True, "SGD", 0.5),
    ],
)
def test_a_model_that_no_gpu_holds_trains_in_stages_with_the_bits_of_one_large_gpu(
    strategy, ranks, trains, kind, cards
):
    """Trained as a whole, half a card of parameters comes with twice as much for the gradients of two lanes."""
    [(bits, loss, [prepared, trained])] = once(0.1, trains, kind)
    assert prepared < 1.1 + 2 * trains
    assert trained * cards > 1.4
    for staged_bits, staged_loss, [staged_prepared, staged_trained] in once(cards, trains, kind, ranks, strategy):
        assert (staged_bits, staged_loss) == (bits, loss)
        assert staged_prepared < 0.1
        assert staged_trained * cards < 1.0
