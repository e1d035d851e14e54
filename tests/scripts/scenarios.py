"""Training loops with everything that real scripts have. Each returns a dictionary of hashes and numbers.

They run on any number of ranks (tests compare the results), so none looks at its rank.
"""

import copy
import random

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

import samebits
from samebits.testing.digests import digest_of
from tests.scripts.registration import scenario


def digits(count=150):
    data = load_digits()
    return TensorDataset(
        torch.tensor(data.images[:count], dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target[:count])
    )


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, images):
        return self.head(self.body(images))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(
    model, *, optimizer=None, loader=None, epochs=2, loss_of=None, after_step=lambda _: None, buffers=None, **init
):
    """The ordinary loop; the hashes of everything at the end."""
    run = samebits.init(**({"seed": 3, "lanes": 4} | init))
    model = model()
    optimizer = (optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-2)))(model.parameters())
    loader = loader() if loader else DataLoader(digits(), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader, buffers=buffers)
    loss_of = loss_of or (lambda model, images, labels: F.cross_entropy(model(images), labels))
    losses = []
    for _ in run.epochs(epochs):
        for step in run.steps(loader):
            for images, labels in step:
                run.backward(loss_of(model, images, labels))
            norm = run.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            after_step(model)
            optimizer.zero_grad()
            losses.append((step.loss.hex(), norm.hex()))
    return {"model": digest_of(model), "optimizer": digest_of(optimizer), "losses": losses}


@scenario
def batch_norm_and_dropout():
    return train(Cnn)


@scenario
def seven_lanes():
    return train(Cnn, lanes=7)


@scenario
def momentum_and_groups():
    return train(mlp, optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True))


@scenario
def no_buffers():
    return train(mlp)


class Noisy(torch.utils.data.Dataset):
    """Augmentation from all three global streams."""

    def __init__(self):
        self.inner = digits()

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        image = image + 0.1 * torch.randn_like(image) + float(np.random.rand()) * 0.1
        return (image.flip(-1) if random.random() < 0.5 else image), label


@scenario
def augmentation():
    return train(Cnn, loader=lambda: DataLoader(Noisy(), batch_size=32, shuffle=True))


@scenario
def augmentation_in_workers():
    return train(
        Cnn,
        loader=lambda: DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True),
    )


@scenario
def weighted_sampler():
    return train(
        mlp,
        loader=lambda: DataLoader(
            digits(), batch_size=20, sampler=WeightedRandomSampler(torch.arange(1.0, 151.0), 90), drop_last=True
        ),
    )


@scenario
def own_batch_sampler():
    return train(
        mlp,
        loader=lambda: DataLoader(digits(), batch_sampler=BatchSampler(RandomSampler(digits()), 24, drop_last=False)),
    )


@scenario
def own_collate():
    def collate(samples):
        return torch.stack([image for image, _ in samples]) * 2, torch.stack([label for _, label in samples])

    return train(mlp, loader=lambda: DataLoader(digits(), batch_size=30, shuffle=True, collate_fn=collate))


class Unused(nn.Module):
    """One head that only some lanes use, and one that none uses."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 16)
        self.head = nn.Linear(16, 10)
        self.sometimes = nn.Linear(16, 10)
        self.never = nn.Linear(16, 10)

    def forward(self, images):
        hidden = F.relu(self.body(images.flatten(1)))
        result = self.head(hidden)
        return result + self.sometimes(hidden) if images[0].sum() > 19.5 else result


@scenario
def unused_parameters():
    seen = []

    def note(model):
        seen.append((model.sometimes.weight.grad is None, model.never.weight.grad is None))

    return train(Unused, after_step=note) | {"seen": seen}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(64, 64)
        self.two = nn.Linear(64, 64)
        self.two.weight = self.one.weight

    def forward(self, images):
        return self.two(F.relu(self.one(images.flatten(1))))[:, :10]


@scenario
def tied_weights():
    return train(Tied)


@scenario
def two_forwards():
    return train(
        Cnn, loss_of=lambda model, x, y: F.cross_entropy(model(x), y) + 0.5 * F.cross_entropy(model(x.flip(-1)), y)
    )


@scenario
def several_backwards():
    run = samebits.init(seed=1, lanes=4)
    model = Cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=32, shuffle=True))
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
            run.backward(0.1 * model(images).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return {"model": digest_of(model, optimizer), "loss": step.loss.hex()}


class Wide(nn.Module):
    """Parameters of 1 MB and more: copied gradients, several buckets, sliced sums."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 4000), nn.Linear(4000, 300)
        self.three, self.head = nn.Linear(300, 4000), nn.Linear(4000, 10)
        self.spare = nn.Linear(300, 1001)

    def forward(self, images):
        hidden = F.relu(self.two(F.relu(self.one(images.flatten(1)))))
        spare = self.spare(hidden).mean() if images[0].sum() > 19.5 else 0.0
        return self.head(F.relu(self.three(hidden))) + spare


@scenario
def large_layers():
    """Backward calls per lane change from step to step: buckets that began too early are reduced again."""
    run = samebits.init(seed=1, lanes=4)
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=16, shuffle=True))
    for step in run.steps(loader):
        for images, labels in step:
            for _ in range(1 + step.number % 3):
                run.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad(set_to_none=step.number % 2 == 0)
    return {"model": digest_of(model), "loss": step.loss.hex()}


@scenario
def frozen_then_unfrozen():
    def freeze():
        model = Cnn()
        model.body.requires_grad_(requires_grad=False)
        return model

    steps = []

    def unfreeze(model):
        steps.append(model.body[0].weight.grad is not None)
        if len(steps) == 3:
            model.body.requires_grad_(requires_grad=True)

    return train(freeze, after_step=unfreeze) | {"steps": steps}


class Methods(nn.Module):
    """Trained by a method that is not `forward`."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 8), nn.Linear(8, 64)

    def encode(self, images):
        return torch.tanh(self.encoder(images.flatten(1)))

    def reconstruct(self, images):
        return self.decoder(self.encode(images))


@scenario
def other_methods():
    return train(Methods, loss_of=lambda model, x, _: F.mse_loss(model.reconstruct(x), x.flatten(1)))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.block = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Tanh())
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        hidden = images.flatten(1).requires_grad_()
        for _ in range(2):
            hidden = checkpoint(self.block, hidden, use_reentrant=self.reentrant)
        return self.head(hidden)


@scenario
def activation_checkpointing():
    return train(lambda: Checkpointed(reentrant=False)) | {"re": train(lambda: Checkpointed(reentrant=True))}


@scenario
def gan():
    """Two optimizers; a pass over the step's lanes for each."""
    run = samebits.init(seed=5, lanes=4)
    maker = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 64))
    judge = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-3)
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3)
    prepared = run.prepare(maker, judge, maker_optimizer, judge_optimizer, DataLoader(digits(), 30, shuffle=True))
    loader = prepared[-1]
    losses = []
    for step in run.steps(loader):
        for images, _ in step:
            fake = maker(torch.randn(len(images), 8, device=run.device)).detach()
            real = judge(images.flatten(1))
            run.backward(
                F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
                + F.binary_cross_entropy_with_logits(judge(fake), torch.zeros_like(real))
            )
        judge_optimizer.step()
        judge_optimizer.zero_grad()
        losses.append(step.loss.hex())
        for images, _ in step:
            judged = judge(maker(torch.randn(len(images), 8, device=run.device)))
            run.backward(F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)))
        maker_optimizer.step()
        maker_optimizer.zero_grad()
        judge_optimizer.zero_grad()
        losses.append(step.loss.hex())
    return {"bits": digest_of(maker, judge, maker_optimizer, judge_optimizer), "losses": losses}


@scenario
def moving_average():
    average = {}

    def update(model):
        if not average:
            average["model"] = copy.deepcopy(model)
        with torch.no_grad():
            for mean, value in zip(average["model"].parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.1)

    return train(Cnn, after_step=update) | {"average": digest_of(average["model"])}


@scenario
def token_weights():
    """A loss over unequal numbers of items, weighted by them."""
    run = samebits.init(seed=2, lanes=4)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=32, shuffle=True))
    for step in run.steps(loader):
        for images, labels in step:
            chosen = labels < 6
            loss = F.cross_entropy(model(images.flatten(1)[chosen]), labels[chosen])
            run.backward(loss, weight=int(chosen.sum()))
        optimizer.step()
        optimizer.zero_grad()
    return {"model": digest_of(model), "loss": step.loss.hex()}


@scenario
def accumulation_over_steps():
    """optimizer.step() every third step: gradients add up, as in a plain loop."""
    run = samebits.init(seed=2, lanes=4)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=16, shuffle=True))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        if step.number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step.number % 2 == 0)
    return {"model": digest_of(model), "gradient": digest_of(*[p.grad for p in model.parameters()])}


@scenario
def half_precision():
    return train(lambda: mlp().bfloat16(), loss_of=lambda m, x, y: F.cross_entropy(m(x.bfloat16()).float(), y))


@scenario
def sparse_embedding():
    def model():
        return nn.Sequential(nn.EmbeddingBag(10, 16, sparse=True), nn.Linear(16, 10))

    return train(
        model,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        loss_of=lambda model, _, y: F.cross_entropy(model(y.unsqueeze(1)), (y + 1) % 10),
    )


@scenario
def evaluation():
    """Tallies, gathered rows, and a model that stays in training mode."""
    run = samebits.init(seed=2, lanes=4)
    model = Cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=32, shuffle=True))
    test_set = digits(77)
    test_loader = run.prepare(DataLoader(test_set, batch_size=20, shuffle=True))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    tally, rows = run.tally(), []
    with torch.no_grad():
        for images, labels in test_loader:
            predicted = model(images)
            tally.add(loss=F.cross_entropy(predicted, labels), right=(predicted.argmax(1) == labels).float().mean())
            rows.append(torch.cat([predicted, labels.unsqueeze(1).float()], 1))
    gathered = run.gather(torch.cat(rows) if rows else torch.zeros(0, 11))
    assert gathered[:, -1].tolist() == test_set.tensors[1].tolist()
    values = {name: value.hex() for name, value in tally.mean().items()}
    return {"rows": digest_of(gathered), "model": digest_of(model), "count": tally.sum()["right"].hex()} | values


@scenario
def logged():
    run = samebits.init(seed=2, lanes=4)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=32, shuffle=True))
    drawn = []
    for step in run.steps(loader):
        for images, labels in step:
            loss = F.cross_entropy(model(images), labels)
            run.log(inside=loss)
            run.backward(loss)
        drawn.append(torch.rand(1).item() + random.random() + np.random.rand())
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss, rate=0.1)
    lines = (run._run.config.folder.metrics.read_text().splitlines()) if run.is_main else []
    values = [line.split('"time"')[0] + line.split(",", 3)[3] for line in lines]
    return {"drawn": drawn, "lines": run.broadcast(values)}
