"""A checkpoint in the middle of an epoch: the loader begins anew, so half of the samples are seen twice and half never."""

import sys
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(range(16), batch_size=4, shuffle=True)
resumes = "resume" in sys.argv
state = torch.load("middle.pt") if resumes else {"step": 0, "seen": []}
if resumes:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
step, seen = state["step"], state["seen"]
for batch in loader:
    if step == 2 and not resumes:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "seen": seen}, "middle.pt"
        )
        sys.exit("stopped after step 2")
    if step == 4:
        break
    seen += batch.tolist()
    model(batch[:, None].float()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
times = Counter(seen)
print(f"seen twice: {sorted(n for n in times if times[n] > 1)}, never: {sorted({*range(16)} - times.keys())}")
