"""torch.compile and CUDA graphs under samebits: the same bits twice on one rank, and on two.

`compiled.py MODE` starts itself under `samebits run`; MODE is eager, graphed, or a mode of torch.compile.
"""

import json
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.gpu_day.judging import reason

LANES, BATCH = 4, 64


def callable_for(model, mode, device):
    if mode == "eager":
        return model
    if mode == "graphed":
        return torch.cuda.make_graphed_callables(model, (torch.randn(BATCH // LANES, 64, device=device),))
    return torch.compile(model, mode=None if mode == "default" else mode)


def train(mode):
    run = samebits.init(seed=0, lanes=LANES, threads=1)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    inputs = torch.randn(512, 64)
    data = TensorDataset(inputs, inputs[:, :10].argmax(1))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, BATCH, shuffle=True))
    call = callable_for(model, mode, run.device)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward(F.cross_entropy(call(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
    run.print(f"loss {step.loss.hex()}")


def trained(mode, ranks):
    """The last loss of a run, to the bit; or why there is none."""
    where = ("--device", "cuda", "-n", str(ranks))
    words = [sys.executable, "-m", "samebits", "run", "-q", *where, __file__, mode, "--train"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("loss ")]
    return lines[-1] if lines and not done.returncode else f"failed: {reason(done.stderr)[:200]}"


def main():
    mode = sys.argv[1]
    if "--train" in sys.argv:
        train(mode)
        return
    found = [trained(mode, ranks) for ranks in (1, 1, 2)]
    same = len(set(found)) == 1 and found[0].startswith("loss ")
    print(json.dumps({"ok": same, "says": f"same bits twice and on 2 ranks: {found[0]}" if same else "; ".join(found)}))


if __name__ == "__main__":
    main()
