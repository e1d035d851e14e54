"""A GPT over characters under DDP with snapshots, in the shape of pytorch/examples' distributed/minGPT-ddp; our own.

The text is the source of Python's json package, which is there everywhere. It trains, saves, starts again from the
snapshot as that example does after a restart, and goes on.
"""

import inspect
import json
import os
from dataclasses import asdict, dataclass
from json import decoder, encoder, scanner
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split

BLOCK, WIDTH, HEADS, LAYERS, BATCH = 32, 32, 2, 2, 16


class CharDataset(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, text: str) -> None:
        chars = sorted(set(text))
        self.vocab_size = len(chars)
        place = {char: index for index, char in enumerate(chars)}
        self.tokens = torch.tensor([place[char] for char in text])

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // BLOCK

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chunk = self.tokens[index * BLOCK : (index + 1) * BLOCK + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.ln1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, WIDTH)
        self.place = nn.Parameter(torch.zeros(1, BLOCK, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab_size, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.norm(self.blocks(self.token(tokens) + self.place[:, : tokens.shape[1]])))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass
class Snapshot:
    model_state: dict[str, Tensor]
    optimizer_state: dict[str, object]
    finished_epoch: int


class Trainer:
    def __init__(self, model: nn.Module, train_set: Dataset, test_set: Dataset, snapshot: Path) -> None:
        self.rank, self.snapshot, self.epochs_run = int(os.environ["RANK"]), snapshot, 0
        self.train_loader, self.test_loader = (
            DataLoader(each, BATCH, num_workers=2, sampler=DistributedSampler(each)) for each in (train_set, test_set)
        )
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
        if snapshot.exists():
            found = Snapshot(**torch.load(snapshot, map_location="cpu", weights_only=True))
            model.load_state_dict(found.model_state)
            self.optimizer.load_state_dict(found.optimizer_state)
            self.epochs_run = found.finished_epoch
        self.model = DistributedDataParallel(model)

    def run_epoch(self, epoch: int, loader: DataLoader, train: bool) -> float:
        if train:
            loader.sampler.set_epoch(epoch)
        self.model.train(train)
        losses = []
        for source, targets in loader:
            with torch.set_grad_enabled(train):
                _, loss = self.model(source, targets)
            if train:
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def train(self, epochs: int) -> float:
        for epoch in range(self.epochs_run, epochs):
            self.run_epoch(epoch, self.train_loader, train=True)
            if self.rank == 0:
                torch.save(
                    asdict(Snapshot(self.model.module.state_dict(), self.optimizer.state_dict(), epoch + 1)),
                    self.snapshot,
                )
            tested = self.run_epoch(epoch, self.test_loader, train=False)
        dist.barrier()
        return tested


def main() -> None:
    dist.init_process_group()
    assert dist.get_world_size() == 2
    torch.manual_seed(0)
    data = CharDataset("".join(map(inspect.getsource, (json, decoder, encoder, scanner))))
    parts = random_split(data, [0.9, 0.1], torch.Generator().manual_seed(1))
    found = []
    for epochs in (2, 4):  # the second begins with the snapshot of the first
        torch.manual_seed(2 + epochs)
        trainer = Trainer(GPT(data.vocab_size), *parts, Path("snapshot.pt"))
        assert trainer.epochs_run == epochs - 2
        found.append(trainer.train(epochs))
    assert found[1] < found[0] < 4.0
    tested = torch.tensor(found)
    dist.all_reduce(tested)
    if dist.get_rank() == 0:
        print("peer", json.dumps({"test loss": (tested / 2).tolist()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
