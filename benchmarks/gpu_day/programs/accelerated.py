"""Accelerate on a GPU: `accelerated.py [bf16] [fp16] [ema] [theirs] [timed]`: a CNN, dropout, clipping, accumulation, an evaluation.

Its last line is the sum of all weights, to the bit. `ema`: those of timm's ModelEmaV3. `timed`: milliseconds of a step of
a ResNet-50; `theirs`: with Accelerate's own class.
"""

import importlib
import sys

import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gpu_day.programs.models import MODELS, loss_of, whole
from benchmarks.gpu_day.programs.trainer import Clock


def small():
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, 10)
    )  # fmt: skip
    return model, TensorDataset(torch.randn(512, 3, 16, 16), torch.randint(0, 10, (512,))), 8


def main():
    options = sys.argv[1:]
    timed = "timed" in options
    library = "accelerate" if "theirs" in options else "samebits.integrations.accelerate"
    make_accelerator = importlib.import_module(library).Accelerator
    precision = next((name for name in ("bf16", "fp16") if name in options), "no")
    more = {"lanes": 1} if timed and "theirs" not in options else {}
    accumulation = 1 if timed else 2
    accelerator = make_accelerator(mixed_precision=precision, gradient_accumulation_steps=accumulation, **more)
    set_seed(0)
    model, data, batch = MODELS["resnet50"](False) if timed else small()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    train = DataLoader(data, batch, shuffle=True, drop_last=timed, pin_memory=True, collate_fn=whole if timed else None)
    test = DataLoader(torch.utils.data.Subset(data, range(min(len(data), 37))), 4)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    ema = None
    if "ema" in options:
        ema = importlib.import_module("timm.utils").ModelEmaV3(accelerator.unwrap_model(model), decay=0.9)
        accelerator.run.prepare(ema)
    clock = Clock()
    model.train()
    for pictures, labels in train:
        with accelerator.accumulate(model):
            accelerator.backward(
                loss_of(model, pictures, labels) if timed else F.cross_entropy(model(pictures), labels)
            )
            if accelerator.sync_gradients and not timed:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if ema is not None and accelerator.sync_gradients:
            ema.update(accelerator.unwrap_model(model))
        if timed and clock.tick():
            accelerator.print(clock.says())
            return
    model.eval()
    with torch.no_grad():
        losses = torch.cat(
            [accelerator.gather_for_metrics(F.cross_entropy(model(x), y, reduction="none")) for x, y in test]
        )
    weighed = ema.module if ema is not None else accelerator.unwrap_model(model)
    total = sum(float(one.detach().double().sum()) for one in weighed.state_dict().values())
    accelerator.print(f"on {accelerator.device.type}: {total.hex()}, {float(losses.mean()).hex()} over {len(losses)}")


if __name__ == "__main__":
    main()
