"""A step of lockstep beside the bare loop, in turn in one process: `overhead.py MODEL LANES PRECISION [--quick]`.

Three sides: lockstep, whose batches come from a loader; the bare loop from a loader (G1); the bare loop over a batch that
lies on the device (G2). lockstep comes first, so that its switches (deterministic kernels) hold for all. Waits of a step are
counted by torch.cuda.set_sync_debug_mode.
"""

import itertools
import json
import statistics
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

G1, G2 = 1.01, 1.02
DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class Gpt(nn.Module):
    def __init__(self, width=768, blocks=12, words=8192, length=256):
        super().__init__()
        self.embedding, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.head = nn.Linear(width, words, bias=False)
        layer = lambda: nn.TransformerEncoderLayer(width, 12, 4 * width, 0.1, batch_first=True, norm_first=True)  # noqa: E731
        self.blocks = nn.ModuleList(layer() for _ in range(blocks))
        self.register_buffer("numbers", torch.arange(length))

    def forward(self, words):
        hidden = self.embedding(words) + self.places(self.numbers[: words.shape[1]])
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        for each in self.blocks:
            hidden = each(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


def convolutions(inputs, outputs, stride):
    layers = []
    for before, step in ((inputs, stride), (outputs, 1)):
        layers += [nn.Conv2d(before, outputs, 3, step, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def mlp(quick):
    width = 64 if quick else 4096
    model = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, 10))
    batch = 16 if quick else 512
    return model, torch.randn(8 * batch, 1024), 10, batch


def cnn(quick):
    widths = (3, 4, 8) if quick else (3, 64, 128, 256, 512)
    body = [convolutions(a, b, 1 + (number > 0)) for number, (a, b) in enumerate(itertools.pairwise(widths))]
    side = 32 >> (len(widths) - 2)
    batch = 8 if quick else 256
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(widths[-1] * side * side, 10))
    return model, torch.randn(8 * batch, 3, 32, 32), 10, batch


def gpt(quick):
    model = Gpt(48, 1, 64, 8) if quick else Gpt()
    words, length, batch = (64, 8, 4) if quick else (8192, 256, 16)
    return model, torch.randint(0, words, (8 * batch, length)), words, batch


def labels_for(inputs, classes):
    return inputs if inputs.dtype == torch.long else torch.randint(0, classes, (len(inputs),))


def ours(made, lanes, precision):
    run = lockstep.init(seed=0, lanes=lanes, threads=1, precision=precision)
    model, inputs, classes, batch = made
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data = TensorDataset(inputs, labels_for(inputs, classes))
    loader = DataLoader(data, batch, shuffle=True, drop_last=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    while True:
        for step in run.steps(loader):
            for samples, labels in step:
                run.backward(F.cross_entropy(model(samples), labels.flatten()))
            optimizer.step()
            optimizer.zero_grad()
            yield


def batches(inputs, labels, batch, streamed):
    if not streamed:
        ready = inputs[:batch].cuda(), labels[:batch].cuda()
        while True:
            yield ready
    while True:
        for pair in DataLoader(TensorDataset(inputs, labels), batch, shuffle=True, drop_last=True, pin_memory=True):
            yield [tensor.cuda(non_blocking=True) for tensor in pair]


def bare(made, lanes, precision, streamed):
    model, inputs, classes, batch = made
    model.cuda()
    optimizer, dtype = torch.optim.AdamW(model.parameters(), 1e-4), DTYPES.get(precision)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "16-mixed")
    for pair in batches(inputs, labels_for(inputs, classes), batch, streamed):
        for samples, labels in zip(*(tensor.chunk(lanes) for tensor in pair), strict=True):
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = F.cross_entropy(model(samples), labels.flatten()) / lanes
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield


def timed(steps, number):
    """Seconds of a step."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(number):
        next(steps)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / number


def waits(steps):
    """How often a step waits for its device; None where torch cannot tell."""
    if not hasattr(torch._C, "_cuda_set_sync_debug_mode"):
        return None
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        next(steps)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in seen)


def main():
    name, lanes, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    quick = "--quick" in sys.argv
    steps, rounds = (2, 2) if quick else (20, 6)
    make = {"mlp": mlp, "cnn": cnn, "gpt": gpt}[name]
    sides = {
        "lockstep": ours(make(quick), lanes, precision),
        "bare": bare(make(quick), lanes, precision, True),
        "bare, batch on the device": bare(make(quick), lanes, precision, False),
    }
    for side in sides.values():
        timed(side, 3)
    turns = [{name: timed(side, steps) for name, side in sides.items()} for _ in range(rounds)]
    middle = {name: statistics.median(turn[name] for turn in turns) for name in sides}
    ratio, streamed = (statistics.median(turn["lockstep"] / turn[other] for turn in turns) for other in list(sides)[1:])
    counted = {name: waits(side) for name, side in sides.items()}
    told = (
        "waits not counted" if counted["lockstep"] is None else f"waits {counted['lockstep']} ({counted['bare']} bare)"
    )
    says = f"{middle['lockstep'] * 1e3:.2f} ms; {ratio:.3f} x the bare step, {streamed:.3f} x with its batch on the device; {told}"
    missed = ratio > G1 or streamed > G2
    figures = {"seconds": middle, "ratio": ratio, "ratio_batch_on_device": streamed, "waits": counted, "turns": turns}
    print(json.dumps({"missed": missed, "says": says, **figures}))


if __name__ == "__main__":
    main()
