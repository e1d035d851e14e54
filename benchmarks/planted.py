"""Twenty changes of the kind that move a loss by 1e-4, planted in scripts: does `samebits verify --where` name each?

    python -m benchmarks.planted [--only WORD]

Each change is made in the working tree of a repository whose commit has the script without it. Right is a row whose operator is
the one that the change touches, at the changed line. `examples/gpt.py` is among them; the others call nothing of samebits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

GPT = """
import math, torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
torch.set_num_threads(1)
WIDTH, HEADS, LENGTH, WORDS = 32, 4, 24, 50

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        nn.init.normal_(self.out.weight, std=0.02)
    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        weights = weights.masked_fill(torch.ones(t, t).tril() == 0, -math.inf).softmax(-1)
        mixed = weights @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.mlp(self.norm2(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, WORDS)
    def forward(self, x):
        return self.head(self.blocks(self.words(x) + self.places(torch.arange(x.shape[1]))))

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = torch.randint(0, WORDS, (2000,))
for step in range(8):
    starts = torch.randint(0, 2000 - LENGTH - 1, (8,))
    x = torch.stack([text[i : i + LENGTH] for i in starts])
    y = torch.stack([text[i + 1 : i + LENGTH + 1] for i in starts])
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
"""
RESNET = """
import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(x + y)

model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *(Block(8) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
images, labels = torch.randn(64, 3, 12, 12), torch.randint(0, 10, (64,))
for step in range(8):
    rows = torch.randperm(64)[:16]
    x = (images[rows] - 0.1) / 0.5
    loss = nn.functional.cross_entropy(model(x), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LSTM = """
import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(40, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 5)
    def forward(self, x):
        out, _ = self.lstm(self.words(x))
        mean = out.sum(1) / out.shape[1]
        return self.head(mean)

model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
texts, labels = torch.randint(0, 40, (64, 12)), torch.randint(0, 5, (64,))
for step in range(8):
    rows = torch.randint(0, 64, (16,))
    logits = model(texts[rows])
    loss = nn.functional.cross_entropy(logits, labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


PORTED = Path(__file__).parents[1].joinpath("examples", "gpt.py").read_text()
"""Calls `samebits.init()`; `python` starts it on one rank."""


@dataclass(frozen=True)
class Planted:
    """A change and the operators that name it."""

    name: str
    script: str
    before: str
    after: str
    operators: tuple[str, ...]
    """What the right answer begins with."""


PLANTED = (
    Planted("ported: epsilon of a norm", PORTED, "self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)", "self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, eps=1e-6)", ("aten.native_layer_norm",)),
    Planted("ported: another GELU", PORTED, "F.gelu(self.up(self.norm2(hidden)))", "F.gelu(self.up(self.norm2(hidden)), approximate='tanh')", ("aten.gelu",)),
    Planted("ported: initial value", PORTED, "self.positions.weight, std=0.1)", "self.positions.weight, std=0.101)", ("aten.normal_",)),
    Planted("ported: dropout", PORTED, "nn.Dropout(0.05)", "nn.Dropout(0.051)", ("aten.bernoulli_", "aten.native_dropout")),
    Planted("order of a sum", GPT, "x = x + self.out(mixed", "x = self.out(mixed", ("aten.add", "aten.native_layer_norm", "aten.view")),
    Planted("scale of attention", GPT, "/ math.sqrt(WIDTH // HEADS)", "* (1 / math.sqrt(WIDTH // HEADS) + 1e-7)", ("aten.div", "aten.mul")),
    Planted("fused attention", GPT, "mixed = weights @ v", "mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)", ("aten._scaled_dot_product", "aten.expand")),
    Planted("another seed", GPT, "torch.manual_seed(1)", "torch.manual_seed(2)", ("aten.normal_", "aten.uniform_")),
    Planted("limit of a norm", GPT, "model.parameters(), 0.1)", "model.parameters(), 0.0999)", ("aten.mul", "aten.clamp", "aten.reciprocal", "aten.div", "aten._foreach_mul")),
    Planted("learning rate", GPT, "lr=1e-3", "lr=1.001e-3", ("aten._foreach", "aten._fused", "aten.addcdiv_", "aten.mul_")),
    Planted("fused update", GPT, "lr=1e-3)", "lr=1e-3, fused=True)", ("aten._fused_adamw_", "aten._foreach", "aten.add_", "aten.zeros", "aten.empty")),
    Planted("a mask by another number", GPT, "-math.inf", "-3.0", ("aten.masked_fill",)),
    Planted("bias of a convolution", RESNET, "padding=1, bias=False)", "padding=1, bias=True)", ("aten.uniform_", "aten.empty", "aten.convolution")),
    Planted("momentum of statistics", RESNET, "self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)", "self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width, momentum=0.11)", ("aten.native_batch_norm", "aten._native_batch_norm")),
    Planted("order of additions", RESNET, "torch.relu(x + y)", "torch.relu((x + 1e-7) + y)", ("aten.add",)),
    Planted("weight decay", RESNET, "weight_decay=1e-4", "weight_decay=2e-4", ("aten.add", "aten._foreach_add")),
    Planted("normalization of data", RESNET, "- 0.1) / 0.5", "- 0.1) / 0.501", ("aten.div",)),
    Planted("a sum from the other end", LSTM, "out.sum(1) / out.shape[1]", "out.flip(1).sum(1) / out.shape[1]", ("aten.flip", "aten.sum")),
    Planted("smoothed labels", LSTM, "(logits, labels[rows])", "(logits, labels[rows], label_smoothing=0.001)", ("aten._log_softmax", "aten.nll_loss", "aten.mean", "aten.neg", "aten.sum", "aten.mul")),
    Planted("double precision inside", LSTM, "logits = model(texts[rows])", "logits = model(texts[rows]).double().softmax(-1).log().float()", ("aten._to_copy",)),
)  # fmt: skip


def try_one(planted: Planted) -> tuple[bool, str, float]:
    """Whether the operator is right, what was said, and the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as place:
        script = Path(place, "train.py")
        script.write_text(planted.script)
        for words in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "before"],
        ):
            subprocess.run(["git", *words], cwd=place, check=True)
        assert planted.before in planted.script, planted.name
        script.write_text(planted.script.replace(planted.before, planted.after))
        lines = script.read_text().splitlines()
        changed = {number for number, line in enumerate(lines, 1) if line not in planted.script.splitlines()}
        command = ["-m", "samebits", "verify", "-q", "--json", "--where", "--steps", "3", "--against-commit", "HEAD"]
        ended = subprocess.run(
            [sys.executable, *command, "train.py"], check=False, cwd=place, capture_output=True, text=True
        )
    found = json.loads(ended.stdout) if ended.stdout else {}
    operator = found.get("operator") or {}
    names = [operator.get("name") or "", operator.get("other_name") or ""]
    line = (operator.get("line") or ":0").rpartition(":")[2]
    right = ended.returncode == 1 and any(name.startswith(planted.operators) for name in names)
    said = f"{operator.get('why', found.get('operator_unknown'))}: {' / '.join(filter(None, names))} at line {line}"
    at = "its line" if int(line or 0) in changed else "behind it"
    return right, f"{said} ({at})", time.monotonic() - began


def main() -> None:
    """Try all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="changes with this word")
    only = parser.parse_args().only
    chosen = [one for one in PLANTED if only in one.name]
    rights = 0
    for planted in chosen:
        right, said, seconds = try_one(planted)
        rights += right
        print(f"{'right' if right else 'WRONG':<6} {planted.name:<26} {said}   {seconds:.0f} s", flush=True)
    print(f"{rights} of {len(chosen)} named")
    sys.exit(rights != len(chosen))


if __name__ == "__main__":
    main()
