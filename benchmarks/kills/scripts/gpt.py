"""The network of `examples/gpt.py`, on crops that each sample draws itself, with a schedule and clipped gradients."""

import runpy
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import samebits
from benchmarks.kills import notes

GPT = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "gpt.py"))["GPT"]
STEPS, BATCH, LENGTH = int(sys.argv[1]), 8, 16


class Crops(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    def __init__(self) -> None:
        self.text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return STEPS // 5 * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        place = int(torch.randint(len(self.text) - LENGTH, ()))
        crop = self.text[place : place + LENGTH + 1]
        return crop[:-1], crop[1:], index


run = samebits.init(seed=3, lanes=4, threads=1)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, DataLoader(Crops(), batch_size=BATCH))
for _ in run.epochs(5):
    for step in run.steps(loader):
        for text, following, numbers in step:
            notes.samples(step.number, numbers.tolist())
            run.backward(model.loss(text, following))
        run.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.log(loss=step.loss, lr=scheduler.get_last_lr()[0])
        notes.ended(step.number)
run.save_state("end")
