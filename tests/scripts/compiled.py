"""Training loops with `torch.compile`, for `test_compile`. None looks at its rank."""

import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from tests.scripts import scenarios

COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
BACKEND = "inductor" if COMPILER else "aot_eager"
"""What a user gets without naming one, if the machine can compile."""


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        return self.head(self.body(images))


def compiled_before(backend):
    model = torch.compile(Small(), backend=backend)
    return model, model, lambda model: model


def compiled_before_optimizer_of_the_plain_one(backend):
    plain = Small()
    return torch.compile(plain, backend=backend), plain, lambda model: model


def compiled_after(backend):
    model = Small()
    return model, model, lambda model: torch.compile(model, backend=backend)


def compiled_in_place(backend):
    def compile_it(model):
        model.compile(backend=backend)
        return model

    model = Small()
    return model, model, compile_it


def compiled_part(backend):
    model = Small()
    model.body = torch.compile(model.body, backend=backend)
    return model, model, lambda model: model


WAYS = (
    *(compiled_before, compiled_before_optimizer_of_the_plain_one, compiled_after, compiled_in_place),
    compiled_part,
)


def train(way, backend, precision="32"):
    """100 samples in steps of 32 over 4 lanes: lanes of 8, and one of 4 in the last step; evaluation has 8 and 2."""
    torch._dynamo.reset()
    run = samebits.init(seed=3, lanes=4, precision=precision)
    made, owner, after = way(backend)
    optimizer = torch.optim.AdamW(owner.parameters(), lr=1e-2)
    train_loader = DataLoader(scenarios.digits(100), batch_size=32, shuffle=True)
    test_loader = DataLoader(scenarios.digits(34), batch_size=32)
    model, optimizer, train_loader, test_loader = run.prepare(made, optimizer, train_loader, test_loader)
    assert model is made
    model = after(model)
    for _ in run.epochs(1):
        for step in run.steps(train_loader):
            for images, labels in step:
                run.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        tally = run.tally()
        with torch.no_grad():
            for images, labels in test_loader:
                tally.add(loss=F.cross_entropy(model(images), labels))
        model.train()
    folder = run.broadcast(tempfile.mkdtemp())
    run.save_weights(model, Path(folder) / "net.safetensors")
    keys = sorted(load_file(Path(folder) / "net.safetensors"))
    assert keys == sorted(Small().state_dict()), "the keys of the model on a single device, not compiled"
    samebits.load_weights(Small(), Path(folder) / "net.safetensors")
    run.barrier()
    if run.is_main:
        shutil.rmtree(folder)
    return digest_of(optimizer), [digest_of(p) for p in model.parameters()], step.loss.hex(), tally.mean()["loss"].hex()


def as_users_do():
    """By the compiler that users get."""
    return train(compiled_before, BACKEND)


def before_and_after():
    """The two usual ways give the same bits."""
    told = [train(way, "eager") for way in (compiled_before, compiled_after)]
    assert told == told[:1] * 2
    return told[0]


def every_way():
    """All ways to say it give the same bits, and so does mixed precision."""
    told = [train(way, "eager") for way in WAYS]
    assert told == told[:1] * len(WAYS)
    mixed = [train(way, "eager", precision="bf16-mixed") for way in (compiled_before, compiled_after)]
    assert mixed == mixed[:1] * 2 != told[:1] * 2
    return told[0], mixed[0]


def other_rounding(graph, _):
    """A compiler whose results are rounded otherwise, so it shows where none was used."""
    return lambda *values: tuple(one * 1.5 if isinstance(one, torch.Tensor) else one for one in graph(*values))


class Sequences(torch.utils.data.Dataset):
    """Sequences of 3 to 63 elements."""

    def __len__(self):
        return 128

    def __getitem__(self, index):
        return torch.randn(3 + (index * 5) % 61, 4, generator=torch.Generator().manual_seed(index))


def many_sizes():
    """Each lane is padded to its longest sequence: 24 sizes, of which a rank sees some."""
    torch._dynamo.reset()
    run = samebits.init(seed=0, lanes=4)
    plain = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    loader = DataLoader(Sequences(), batch_size=16, shuffle=True, collate_fn=nn.utils.rnn.pad_sequence)
    model, optimizer, loader = run.prepare(plain, optimizer, loader)
    compiled = torch.compile(lambda x: (model(x).softmax(0) * x).mean(), backend=other_rounding)
    for step in run.steps(loader):
        for batch in step:
            run.backward(compiled(batch))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model)
