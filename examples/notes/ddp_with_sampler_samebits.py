"""The listing of `ddp_with_sampler.py` in samebits: no sampler, no wrapper; the batch is that of all ranks, 30 + 30.

    $ samebits run -n 2 examples/notes/ddp_with_sampler_samebits.py
    the number of cpu threads: 1
    step 0: Model 0, input size: torch.Size([30, 5]), output size: torch.Size([30, 2])
    step 0: Model 1, input size: torch.Size([30, 5]), output size: torch.Size([30, 2])
    step 1: Model 0, input size: torch.Size([30, 5]), output size: torch.Size([30, 2])

The last step has 30 samples left. DDP gives 15 to each rank; here they fill the first lane and the second is empty, so
a lane never has an odd small size (BatchNorm would see it) and the gradient is still the mean over the 30.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

run = samebits.init(seed=0, lanes=2, threads=1)
print(f"the number of cpu threads: {torch.get_num_threads()}")
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(90, 5)), batch_size=60, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for step in run.steps(loader):
    for (samples,) in step:
        output = model(samples)
        print(f"step {step.index}: Model {run.rank}, input size: {samples.size()}, output size: {output.size()}")
        run.backward(output.square().mean())
    optimizer.step()
    optimizer.zero_grad()
