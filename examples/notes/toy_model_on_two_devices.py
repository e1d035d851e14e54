"""One model over two devices (note c's ToyModel): the first layer on one, the second on the other.

    $ samebits run -n 1 examples/notes/toy_model_on_two_devices.py
    net1 on ...
    net2 on ...
    the outputs are those of one device: True
    the gradients are those of one device: True

With fewer than two GPUs both are the CPU: the same program, nothing gained. Only one of them computes at any time.
"""

import torch
from torch import nn

on_gpus = torch.cuda.device_count() > 1
first, second = (torch.device("cuda", i) if on_gpus else torch.device("cpu") for i in range(2))


class ToyModel(nn.Module):
    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10).to(first)
        self.net2 = nn.Linear(10, 5).to(second)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.net1(inputs.to(self.net1.weight.device)))
        return self.net2(hidden.to(self.net2.weight.device))


torch.manual_seed(0)
split, whole = ToyModel(first, second), ToyModel(first, first)
whole.load_state_dict(split.state_dict())
inputs, labels = torch.randn(20, 10), torch.randn(20, 5)
outputs = []
for model in (split, whole):
    outputs.append(model(inputs))
    nn.functional.mse_loss(outputs[-1], labels.to(outputs[-1].device)).backward()

print(f"net1 on {split.net1.weight.device}")
print(f"net2 on {split.net2.weight.device}")
print(f"the outputs are those of one device: {torch.equal(outputs[0].cpu(), outputs[1].cpu())}")
pairs = zip(split.parameters(), whole.parameters(), strict=True)
print(f"the gradients are those of one device: {all(torch.equal(a.grad.cpu(), b.grad.cpu()) for a, b in pairs)}")
