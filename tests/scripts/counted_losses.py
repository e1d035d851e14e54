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


class Sampling(Detector):
    """A second stage: which proposals it takes, and how many, is known in the forward."""

    def __init__(self, drops):
        super().__init__(drops)
        self.norm, self.proposals = nn.BatchNorm1d(6), nn.Linear(4, 1)

    def forward(self, x):
        logits, boxes = super().forward(x)
        scores = self.proposals(self.norm(boxes)).squeeze(-1)
        return logits, boxes, scores, scores.detach() > 0.05


def sampled(model, batch):
    logits, boxes, scores, taken = model(batch[0])
    classes, distance = sums((lambda _: (logits, boxes)), batch)
    marked = wanted(batch[1]).lt(4).float()
    objects = (F.binary_cross_entropy_with_logits(scores, marked, reduction="none") * taken).sum()
    losses = {"weight": classes, "boxes": distance, "taken": objects}
    return losses, {**counts(batch), "taken": taken.sum()}


def sampled_plain(normed=False):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = Sampling(0.0).train(normed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for start in range(0, 22, 8):
        parts, totals = sampled(model, (IMAGES[start : start + 8], TARGETS[start : start + 8]))
        found = sum(parts[name] / max(float(totals[name]), 1e-9) for name in sorted(parts))
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(found))
    return losses, values_of(model)


def train_sampled(lanes=4, drops=0.0, normed=False, batch_size=8, **options):
    """The script's own loop over lanes; counts out of the forward."""
    run = samebits.init(seed=0, lanes=lanes, threads=1, **options)
    torch.manual_seed(3)
    model = Sampling(drops)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = list(zip(IMAGES, TARGETS, strict=True))
    model, optimizer, loader = run.prepare(
        model, optimizer, DataLoader(data, batch_size=batch_size, collate_fn=collated)
    )
    model.train(normed or bool(drops))
    losses = []
    for step in run.steps(loader):
        for batch in step:
            parts, divisors = sampled(model, batch)
            run.backward(parts, counts=divisors)
            run.log(boxes=float(divisors["boxes"]))
        losses.append(float(step.loss))
        optimizer.step()
        optimizer.zero_grad()
    buffers = [buffer.tolist() for buffer in model.buffers()]
    samebits.finish()
    return losses, values_of(model), buffers


def _one_lane_step(backward):
    run = samebits.init(seed=0, lanes=4, threads=1)
    model, optimizer = made()
    data = list(zip(IMAGES, TARGETS, strict=True))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, collate_fn=collated))
    for step in run.steps(loader):
        for batch in step:
            backward(run, step.lane, *sums(model, batch))


def counts_in_some_lanes():
    def backward(run, lane, classes, distance):
        if lane == 3:
            run.backward(classes + distance)
        else:
            run.backward((classes, distance), counts=(1, 2))

    _one_lane_step(backward)


def counts_twice():
    def backward(run, lane, classes, distance):
        run.backward(classes, counts=1)
        run.backward(distance, counts=2)

    _one_lane_step(backward)


def counts_fewer():
    _one_lane_step(lambda run, lane, classes, distance: run.backward((classes, distance), counts=3))


def counts_no_losses():
    _one_lane_step(lambda run, lane, classes, distance: run.backward((classes, None), counts=(3, 1)))


def counts_and_weighs():
    _one_lane_step(lambda run, lane, classes, distance: run.backward(classes, 3.0, counts=3))


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
    counts_in_some_lanes: "Some lanes called run.backward with counts= and some without",
    counts_twice: "One lane called run.backward(counts=) twice",
    counts_fewer: "run.backward got losses [0, 1] and counts [0]",
    counts_no_losses: "run.backward(counts=) needs scalar losses",
    counts_and_weighs: "run.backward got weight= and counts=",
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
