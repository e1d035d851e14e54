"""Full-batch training on one graph (GCN): a sample is a labelled node, and each lane computes the whole graph.

samebits run -n 2 examples/recipes/whole_graph.py
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits

# Zachary's karate club: who met whom outside it, and who followed the instructor when it split (1977).
MET = {
    0: [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31],
    1: [2, 3, 7, 13, 17, 19, 21, 30],
    2: [3, 7, 8, 9, 13, 27, 28, 32],
    3: [7, 12, 13],
    4: [6, 10],
    5: [6, 10, 16],
    6: [16],
    8: [30, 32, 33],
    9: [33],
    13: [33],
    14: [32, 33],
    15: [32, 33],
    18: [32, 33],
    19: [33],
    20: [32, 33],
    22: [32, 33],
    23: [25, 27, 29, 32, 33],
    24: [25, 27, 31],
    25: [31],
    26: [29, 33],
    27: [33],
    28: [31, 33],
    29: [32, 33],
    30: [32, 33],
    31: [32, 33],
    32: [33],
}
INSTRUCTOR = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21]

NODES = 34
labels = torch.ones(NODES, dtype=torch.long)
labels[INSTRUCTOR] = 0
met = torch.eye(NODES)
for one, others in MET.items():
    met[one, others] = met[others, one] = 1.0
scale = met.sum(1).rsqrt()
near = scale[:, None] * met * scale  # Kipf and Welling 2017: D^-1/2 (A + I) D^-1/2
features = torch.eye(NODES)


class GCN(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first, self.last = nn.Linear(NODES, width), nn.Linear(width, 2)

    def forward(self):
        """The scores of all nodes: (34, 2)."""
        return near @ self.last(F.relu(near @ self.first(features)))


labelled = [0, 1, 5, 8, 14, 23, 26, 33]
run = samebits.init(seed=0, lanes=4, threads=1)
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=5e-4)
loader = DataLoader(labelled, batch_size=len(labelled))  # all of them in each step
model, optimizer, loader = run.prepare(model, optimizer, loader)

for _epoch in run.epochs(60):
    for step in run.steps(loader):
        for nodes in step:  # the lane's labelled nodes
            run.backward(F.cross_entropy(model()[nodes], labels[nodes]))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)

rest = [node for node in range(NODES) if node not in labelled]
with torch.no_grad():
    accuracy = (model().argmax(1) == labels)[rest].float().mean()  # the whole graph, on every rank
run.log(accuracy=float(accuracy))
