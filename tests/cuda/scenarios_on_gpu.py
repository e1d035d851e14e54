"""A training loop on the run's device, with nested batches, dropout and BatchNorm."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.rank.run.ending import state_hash
from samebits.testing.digests import digest_of


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"image": torch.full((1, 8, 8), index / 100) + torch.randn(1, 8, 8), "label": index % 10}


def train():
    run = samebits.init(seed=1)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Pictures(), batch_size=32, shuffle=True))
    for step in run.steps(loader):
        for batch in step:
            assert batch["image"].device == run.device
            run.backward(F.cross_entropy(model(batch["image"]), batch["label"]))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model, optimizer), step.loss.hex(), str(run.device.type)


def train_as(precision, workers, pass_count=1):
    """Two epochs with the copying stream, in a precision, with evaluation; a lane may be iterated twice."""
    run = samebits.init(seed=1, lanes=4, precision=precision)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    loader = DataLoader(Pictures(), batch_size=32, shuffle=True, num_workers=workers)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for _ in range(pass_count):
                for batch in step:
                    assert batch["image"].device == run.device
                    run.backward(F.cross_entropy(model(batch["image"]), batch["label"]))
            optimizer.step()
            optimizer.zero_grad()
    tally = run.tally()
    model.eval()
    with torch.no_grad():
        for batch in loader:
            tally.add(loss=F.cross_entropy(model(batch["image"]).float(), batch["label"]))
    return digest_of(model), digest_of(optimizer), tally.mean()["loss"].hex()


def synchronised_norm():
    """One lane per rank, as SyncBatchNorm needs."""
    run = samebits.init(seed=1, lanes=2)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(Pictures(), batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        for batch in step:
            run.backward(F.cross_entropy(model(batch["image"]), batch["label"]))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model)


def resumed(path, epochs):
    """Two epochs, the second of which may come after a load; the state holds what is on the GPU."""
    run = samebits.init(seed=1)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Pictures(), batch_size=32, shuffle=True))
    run.load_state(path, missing_ok=True)
    drawn = torch.rand(3, device=run.device).tolist()
    made = []
    for epoch in run.epochs(epochs):
        made.append(epoch)
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch["image"]), batch["label"]))
            optimizer.step()
            optimizer.zero_grad()
        run.save_state(path)
        drawn_after = torch.rand(3, device=run.device).tolist()
    return digest_of(model, optimizer), made, drawn, drawn_after


def state_before_prepare(kind, loads):
    """The optimizer has its state while the model is still on the CPU; another device is the default."""
    run = samebits.init(seed=1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    if loads:
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.set_default_device("cuda")
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Pictures(), batch_size=32))
    with torch.device("cpu"):  # the data set makes its pictures there
        for step in run.steps(loader):
            for batch in step:
                run.backward(F.cross_entropy(model(batch["image"]), batch["label"]))
            optimizer.step()
            optimizer.zero_grad()
    return digest_of(model, optimizer)


def gathered_from_few():
    """The last rank has no sample, and so no row of which it could know the device."""
    run = samebits.init(seed=1)
    few = torch.utils.data.TensorDataset(torch.ones(1, 4))
    model, loader = run.prepare(nn.Linear(4, 1), DataLoader(few, batch_size=1))
    with torch.no_grad():
        rows = [model(values) for (values,) in loader]
    gathered = run.gather(torch.cat(rows) if rows else torch.zeros(0))
    return len(rows), tuple(gathered.shape), gathered.device.type


class Layered(nn.Module):
    """Random numbers and running statistics in every part; on one device, or where its author put the parts."""

    def __init__(self, dropped, *devices):
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropped)) for _ in range(4)
        )
        self.head = nn.Linear(8, 4)
        self.devices = devices
        for number, device in enumerate(devices):
            self.parts[2 * number : 2 * number + 2].to(device)
        self.head.to(devices[-1] if devices else "cpu")

    def forward(self, values):
        home = values.device
        for number, part in enumerate(self.parts):
            values = part(values.to(self.devices[number // 2]) if self.devices else values)
        return self.head(values).to(home)


def layered(path, epochs, dropped, *places):
    """Two epochs, the second of which may come after a load; with clipping and evaluation."""
    run = samebits.init(seed=1, lanes=4)
    model = Layered(dropped, *(torch.device("cuda", place + 2 * run.rank) for place in places))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    values = torch.randn(36, 8)
    data = torch.utils.data.TensorDataset(values, values[:, :4].argmax(1))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12, shuffle=True))
    run.load_state(path, missing_ok=True)
    tally = run.tally()
    for _ in run.epochs(epochs):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            run.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for batch in loader:
                tally.add(loss=F.cross_entropy(model(batch[0]), batch[1]))
        model.train()
        run.save_state(path)
    return state_hash(run._run), tally.mean()["loss"].hex(), sorted({str(p.device) for p in model.parameters()})


def data_on(place):
    """Train on a data set that lies on "cpu" or "cuda"."""
    run = samebits.init(seed=1, lanes=4)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    values = torch.randn(32, 8)
    data = torch.utils.data.TensorDataset(values.to(place), values[:, :4].argmax(1).to(place))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model)
