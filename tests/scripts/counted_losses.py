"""A detector with two losses, each divided by a count of the whole batch. Run by `test_counted_losses`."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits

DRAW = torch.Generator().manual_seed(1)
IMAGES = torch.randn(22, 12, generator=DRAW)
TARGETS = [
    (torch.randint(0, 4, (i * i % 5,), generator=DRAW), torch.rand(i * i % 5, 4, generator=DRAW)) for i in range(22)
]
WEIGHT = torch.tensor([1.0, 1, 1, 1, 0.1])


class Detector(nn.Module):
    def __init__(self, drops):
        super().__init__()
        self.body, self.drop = nn.Linear(12, 32), nn.Dropout(drops)
        self.classes, self.boxes = nn.Linear(32, 6 * 5), nn.Linear(32, 6 * 4)

    def forward(self, x):
        hidden = self.drop(self.body(x).relu())
        return self.classes(hidden).view(-1, 6, 5), self.boxes(hidden).sigmoid().view(-1, 6, 4)


def collated(rows):
    return torch.stack([image for image, _ in rows]), [target for _, target in rows]


def wanted(targets):
    classes = torch.full((len(targets), 6), 4, device=targets[0][0].device)
    for row, (labels, _) in zip(classes, targets, strict=True):
        row[: len(labels)] = labels
    return classes


def counts(batch):
    _, targets = batch
    return {
        "weight": WEIGHT.to(targets[0][0].device)[wanted(targets)].sum(),
        "boxes": sum(len(labels) for labels, _ in targets),
    }


def sums(model, batch):
    images, targets = batch
    logits, boxes = model(images)
    distance = boxes.sum() * 0
    for found, (labels, places) in zip(boxes, targets, strict=True):
        distance = distance + F.l1_loss(found[: len(labels)], places, reduction="sum")
    # With a dimension more it would not be deterministic on a GPU.
    marks, weight = wanted(targets).flatten(), WEIGHT.to(images.device)
    return F.cross_entropy(logits.flatten(0, 1), marks, weight, reduction="sum"), distance


def loss(model, batch, totals):
    classes, distance = sums(model, batch)
    return classes / totals["weight"] + distance / max(totals["boxes"], 1)


def made(drops=0.0):
    torch.manual_seed(3)
    model = Detector(drops)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def values_of(model):
    return [parameter.detach().tolist() for parameter in model.parameters()]


def plain():
    """The loop of one device, in the order of the data."""
    torch.set_num_threads(1)
    model, optimizer = made()
    losses = []
    for start in range(0, 22, 8):
        batch = IMAGES[start : start + 8], TARGETS[start : start + 8]
        found = loss(model, batch, counts(batch))
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(found))
    return losses, values_of(model)


def train(lanes=4, drops=0.0, counted=counts, loss_of=loss, **options):
    run = samebits.init(seed=0, lanes=lanes, threads=1, **options)
    model, optimizer = made(drops)
    data = list(zip(IMAGES, TARGETS, strict=True))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, collate_fn=collated))
    losses = []
    for step in run.steps(loader):
        step.backward(lambda batch, totals: loss_of(model, batch, totals), counts=counted)
        losses.append(float(step.loss))
        optimizer.step()
        optimizer.zero_grad()
    samebits.finish()
    return losses, values_of(model)


def counts_a_mask():
    train(counted=lambda batch: torch.ones(2))


def counts_below_zero():
    train(counted=lambda batch: -1)


def counts_other_things():
    train(counted=lambda batch: [1] * (1 + int(batch[0][0, 0] > 0)))


def exchanges():
    def counted(batch):
        boxes = torch.ones(1)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(boxes)
        return {"weight": 1, "boxes": boxes}

    train(counted=counted)


MISTAKES = {
    counts_a_mask: "counts= needs numbers of 0 or more, but got a tensor of shape (2,)",
    counts_below_zero: "counts= needs numbers of 0 or more, but got -1",
    counts_other_things: "counts= returned different numbers of counts for lanes of one step",
    exchanges: "all_reduce exchanges with other ranks, and was called inside a lane",
}


def in_stages():
    """Two losses of a model that can be cut."""
    run = samebits.init(seed=0, lanes=4, threads=1)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    marks = torch.arange(22) % 3
    loader = DataLoader(list(zip(IMAGES, marks, strict=True)), batch_size=8)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def loss_of(batch, totals):
        outputs, (marked, all_of) = model(batch[0]), totals
        return (outputs.square().sum(1) * (batch[1] == 0)).sum() / marked + outputs.exp().sum() / all_of

    losses = []
    for step in run.steps(loader):
        step.backward(loss_of, counts=lambda batch: ((batch[1] == 0).sum(), len(batch[1])))
        losses.append(float(step.loss))
        optimizer.step()
        optimizer.zero_grad()
    samebits.finish()
    return losses
