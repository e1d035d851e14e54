"""A small GPT that learns to write Python: trained, byte by byte, on the standard library of the Python that runs it.

    samebits run -n 2 examples/gpt.py
    samebits verify --ranks 1,2,4 --steps 5 examples/gpt.py

About a minute on two cores, from 5.5 nats per byte (knowing nothing) via 3.3 (knowing how frequent each byte is,
the unigram entropy) to 1.6. Every rank fetches and computes its lanes; all have the same weights at every step.
"""

import argparse
import hashlib
import math
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import samebits

CONTEXT, WIDTH, HEADS, LAYERS = 64, 128, 4, 2
BATCH, LEARNING_RATE, WARMUP = 32, 6e-3, 50  # windows per step, peak, steps


class Block(nn.Module):
    """One layer: attention, then a feed-forward network, each on top of what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.05)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        q, k, v = self.qkv(self.norm1(hidden)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return hidden + self.dropout(self.down(F.gelu(self.up(self.norm2(hidden)))))


class GPT(nn.Module):
    """(batch, length) bytes to (batch, length, 256) scores of the next byte; 440,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.bytes.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.bytes(text) + self.positions(torch.arange(text.shape[1], device=text.device))
        return F.linear(self.norm(self.blocks(hidden)), self.bytes.weight)  # the head is the embedding: tied weights

    def loss(self, text: Tensor, following: Tensor) -> Tensor:
        """The mean surprise per byte, in nats."""
        return F.cross_entropy(self(text).flatten(0, 1), following.flatten())


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """`count` windows, spread evenly over a text, each with the bytes that follow it."""

    def __init__(self, text: Tensor, count: int) -> None:
        self.text, self.count = text, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * (len(self.text) - CONTEXT - 1) // self.count
        window = self.text[start : start + CONTEXT + 1].long()
        return window[:-1], window[1:]


def read_library() -> tuple[Tensor, Tensor]:
    """The bytes of the standard library's modules: to train on, and to test with (every twentieth file)."""
    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"test", "tests", "site-packages", "dist-packages"}
    files = sorted(file for file in library.rglob("*.py") if not left_out & set(file.relative_to(library).parts))
    contents = [file.read_bytes() for file in files]
    train = b"".join(content for number, content in enumerate(contents) if number % 20)
    test = b"".join(contents[::20])
    return torch.frombuffer(bytearray(train), dtype=torch.uint8), torch.frombuffer(bytearray(test), dtype=torch.uint8)


def unigram_entropy(text: Tensor) -> float:
    """What the best guess without any context loses on `text`, in nats per byte."""
    frequency = torch.bincount(text.long(), minlength=256) / len(text)
    return -torch.special.xlogy(frequency, frequency).sum().item()


def surprise(run: samebits.Run, model: GPT, loader: DataLoader) -> float:
    """The mean loss over a loader: each rank takes its share, and all get the same number."""
    tally = run.tally()
    model.eval()
    with torch.no_grad():
        for text, following in loader:
            tally.add(loss=model.loss(text, following))
    model.train()
    return tally.mean()["loss"]


def write(model: GPT, beginning: str, length: int, device: torch.device) -> str:
    """Continue `beginning` by sampling. Outside steps, every rank draws the same numbers, so all write the same."""
    text = torch.tensor([list(beginning.encode())], device=device)
    model.eval()
    with torch.no_grad():
        for _ in range(length):
            scores = model(text[:, -CONTEXT:])[0, -1] / 0.7
            text = torch.cat([text, torch.multinomial(scores.softmax(0), 1)[None]], 1)
    return bytes(text[0].tolist()).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--test-every", type=int, default=100, help="steps between two looks at the test files")
    parser.add_argument("--weights", default="gpt.safetensors", help="where the trained weights go")
    options = parser.parse_args()

    run = samebits.init(seed=0, lanes=4, threads=1)
    train_text, test_text = read_library()
    floor = unigram_entropy(test_text)
    corpus = hashlib.sha256(train_text.numpy()).hexdigest()[:12]  # differs between versions of Python
    run.print(
        f"{len(train_text):,} bytes of Python (sha256 {corpus}); unigram entropy of the test files: {floor:.3f} nats"
    )

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)

    def share_of_peak(done: int) -> float:
        """The learning rate goes up, then down to zero."""
        return min((done + 1) / WARMUP, 1 - done / (options.steps + 1))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)
    loader = DataLoader(Windows(train_text, options.steps * BATCH), batch_size=BATCH, shuffle=True)
    test_loader = DataLoader(Windows(test_text, 512), batch_size=128)
    model, optimizer, scheduler, loader, test_loader = run.prepare(model, optimizer, scheduler, loader, test_loader)

    for step in run.steps(loader):
        step.backward(lambda batch: model.loss(*batch))
        run.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        run.log(loss=step.loss)
        if step.number % options.test_every == 0 or step.number == options.steps:
            loss = surprise(run, model, test_loader)
            run.log(test_loss=loss)
            run.print(f"step {step.number:4d}  test loss {loss:.3f} nats = {loss / math.log(2):.3f} bits per byte")

    sample = write(model, "def ", 300, run.device)
    run.print(f"\n{sample}\n")
    run.save_weights(model, options.weights)


if __name__ == "__main__":
    main()
