"""Scenarios that once went wrong, or nearly did. Like `scenarios`: any number of ranks, the same result."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from tests.scripts.registration import scenario
from tests.scripts.scenarios import Cnn, digits, mlp, train


class Shared(nn.Module):
    """One buffer in two modules, counted by the second, and held by a plain attribute."""

    def __init__(self):
        super().__init__()
        count = torch.zeros(1)
        self.one, self.two = nn.Linear(64, 8), nn.Linear(8, 10)
        self.one.register_buffer("count", count)
        self.two.register_buffer("count", count)
        self.handles = [count]
        self.register_buffer("graph", torch.eye(8).to_sparse())
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex128))

    def forward(self, images):
        self.two.count.add_(1)
        self.phase.mul_(1j)
        return self.two(torch.sparse.mm(self.graph, self.one(images.flatten(1)).t()).t())


@scenario
def shared_and_odd_buffers():
    models = []

    def model():
        models.append(Shared())
        return models[0]

    result = train(model, buffers={"*count": "first"})
    counts = models[0].one.count.item(), models[0].two.count.item(), models[0].handles[0].item()
    return result | {"counts": counts, "phase": str(models[0].phase.tolist())}


class Twice(nn.Module):
    """A reused block in a reentrant checkpoint, whose hooks fire twice, and a large layer that only some lanes use."""

    def __init__(self):
        super().__init__()
        self.block, self.rare, self.head = nn.Linear(64, 64), nn.Linear(64, 1200), nn.Linear(64, 10)

    def forward(self, images):
        hidden = images.flatten(1).requires_grad_()
        for _ in range(3):
            hidden = checkpoint(self.block, hidden, use_reentrant=True)
        result = self.head(hidden)
        return result + self.rare(hidden).mean() if images[0].sum() > 19.5 else result


class HalfStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(64, 20), nn.BatchNorm1d(20), nn.Linear(20, 10)
        self.bfloat16()

    def forward(self, images):
        return self.two(self.norm(self.one(images.flatten(1).bfloat16()))).float()


@scenario
def statistics_in_half_precision():
    return train(HalfStatistics)


@scenario
def hooks_that_fire_twice():
    return train(Twice, loader=lambda: DataLoader(digits(), batch_size=16, shuffle=True), epochs=3)


@scenario
def peeking_on_one_rank():
    """Rank 0 looks at a batch on its own; the evaluation that follows is the same on every rank."""
    run = samebits.init(seed=1, lanes=4)
    first = run.prepare(DataLoader(digits(60), batch_size=16, shuffle=True))
    second = run.prepare(DataLoader(digits(60), batch_size=16, shuffle=True))
    if run.is_main:
        next(iter(first))
    tally, rows = run.tally(), []
    for _, labels in first:
        tally.add(label=labels.float().mean())
        rows.append(labels.float())
    for _ in second:
        pass
    gathered = run.gather(torch.cat(rows) if rows else torch.zeros(0), first)
    assert gathered.tolist() == digits(60).tensors[1].tolist()
    return {"mean": tally.mean()["label"].hex(), "count": tally.sum()["label"]}


@scenario
def lanes_without_items():
    """A lane whose loss is 0 / 0 weighs nothing; a step that is not used leaves no trace in the random streams."""
    run = samebits.init(seed=2, lanes=4)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=16, shuffle=True))
    drawn, losses = [], []
    for step in run.steps(loader):
        if step.number % 3:
            for images, labels in step:
                chosen = labels < 3
                loss = F.cross_entropy(model(images.flatten(1)[chosen]), labels[chosen])
                run.backward(loss, weight=chosen.sum())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step.loss.hex())
    drawn.append(torch.rand(1).item())
    return {"model": digest_of(model), "drawn": drawn, "losses": losses}


@scenario
def leaving_early_and_going_on():
    """Every rank leaves a step's lanes before any backward; the next step has the buffers and logs of a clean start."""
    run = samebits.init(seed=2, lanes=4)
    model = Cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(96), batch_size=32))
    for step in run.steps(loader):
        for images, labels in step:
            run.log(number=step.number)
            loss = F.cross_entropy(model(images), labels)
            if step.number == 2:
                break
            run.backward(loss)
        if step.number != 2:
            optimizer.step()
            optimizer.zero_grad()
    return {"model": digest_of(model)}


@scenario
def taking_turns():
    """A GAN's trick: freeze one half in each pass."""
    run = samebits.init(seed=4, lanes=4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 700), nn.Tanh(), nn.Linear(700, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(96), batch_size=16, shuffle=True))
    for step in run.steps(loader):
        for number in (1, 3):
            model[number].requires_grad_(requires_grad=False)
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            model[number].requires_grad_(requires_grad=True)
    return {"model": digest_of(model), "loss": step.loss.hex()}


class Scales(torch.utils.data.Sampler):
    """Indices that are not numbers: (picture, scale)."""

    def __len__(self):
        return 60

    def __iter__(self):
        yield from ((int(index), 1 + int(index) % 2) for index in torch.randperm(60))


class Scaled(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, place):
        index, scale = place
        image, label = digits(60)[index]
        return image * scale, label


@scenario
def tuples_as_indices():
    return train(mlp, loader=lambda: DataLoader(Scaled(), batch_size=16, sampler=Scales()), epochs=1)


class Stream(torch.utils.data.IterableDataset):
    """Shuffled and augmented with the global generators; split by worker, as torch's documentation tells."""

    def __iter__(self):
        worker, data = torch.utils.data.get_worker_info(), digits(70)
        order = torch.randperm(70).tolist()
        for index in order if worker is None else order[worker.id :: worker.num_workers]:
            image, label = data[index]
            yield image + 0.1 * torch.randn_like(image), label


@scenario
def a_stream():
    return train(mlp, loader=lambda: DataLoader(Stream(), batch_size=16, num_workers=2))


def closures(make, epochs=2):
    run = samebits.init(seed=3, lanes=4)
    model = mlp()
    optimizer = make(model.parameters())
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=64, shuffle=True))
    losses = []
    for _ in run.epochs(epochs):
        for step in run.steps(loader):

            def closure(step=step):
                optimizer.zero_grad()
                for images, labels in step:
                    run.backward(F.cross_entropy(model(images), labels))
                return step.loss

            losses.append(float(optimizer.step(closure)))
    assert losses[0] > losses[-1]
    return {"model": digest_of(model), "optimizer": digest_of(optimizer), "losses": [loss.hex() for loss in losses]}


@scenario
def lbfgs():
    """Each evaluation of a line search goes through the lanes again."""
    return closures(lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"))


class Sam(torch.optim.SGD):
    """Sharpness-aware minimisation: the gradient at the worst point nearby."""

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        own = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in own]).norm()
        moves = [p.grad * (0.05 / (norm + 1e-12)) for p in own]
        for p, move in zip(own, moves, strict=True):
            p.add_(move)
        with torch.enable_grad():
            closure()
        for p, move in zip(own, moves, strict=True):
            p.sub_(move)
        super().step()
        return loss


@scenario
def sharpness_aware():
    return closures(lambda parameters: Sam(parameters, lr=0.1, momentum=0.9))


class Counting(nn.Module):
    """A buffer that every lane changes in the same way, and one that keeps samples."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.register_buffer("calls", torch.zeros(3))
        self.register_buffer("last", torch.zeros(64))
        self.register_buffer("mask", torch.ones(64), persistent=False)

    def forward(self, images):
        self.calls = self.calls + 1
        self.last.copy_(images[-1].flatten())
        return self.head(images.flatten(1) * self.mask)


@scenario
def buffers_with_rules():
    run = samebits.init(seed=2, lanes=4)
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(
        model, optimizer, DataLoader(digits(), batch_size=32, shuffle=True), buffers={"last": "first", "calls": "first"}
    )
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return {"model": digest_of(model), "calls": model.calls.tolist()}


class Sums(nn.Module):
    """Buffers that are sums over samples, in several dtypes, one of which some lanes leave alone."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.full((64,), 0.1))
        self.register_buffer("halves", torch.zeros(64, dtype=torch.bfloat16))
        self.register_buffer("rare", torch.zeros(64, dtype=torch.float64))
        self.register_buffer("other", torch.zeros(3))

    def forward(self, images):
        images = images.flatten(1)
        self.seen += len(images)
        self.total += images.sum(0)
        self.halves = self.halves + images.sum(0).bfloat16()
        if images.sum() > 157:
            self.rare.add_(images.sum(0))
        return self.head(images * torch.clamp(self.seen / 100, max=1))


@scenario
def buffers_and_tensors_that_are_sums():
    run = samebits.init(seed=2, lanes=4)
    model = Sums()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = dict.fromkeys(("seen", "total", "halves", "rare"), "sum")
    loader = DataLoader(digits(), batch_size=32, shuffle=True, drop_last=False)  # the last step has 22 samples
    model, optimizer, loader = run.prepare(model, optimizer, loader, buffers=rules)
    centers = {dtype: torch.zeros(10, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.int64)}
    for step in run.steps(loader):
        made = []
        for images, labels in step:
            scores = model(images)
            run.backward(F.cross_entropy(scores, labels))
            made.append(scores.detach().sum(0))
        optimizer.step()
        optimizer.zero_grad()
        for dtype in centers:
            centers[dtype] += run.lane_sum([(10 * one).to(dtype) for one in made]).cpu()
    assert int(model.seen) == 150
    assert torch.allclose(model.total.cpu(), 0.1 + digits().tensors[0].flatten(1).sum(0))
    return {"model": digest_of(model), "centers": digest_of(*centers.values())}
