"""Hogwild (note c): processes train one model in shared memory, without locks; a Queue carries their losses back.

    $ python examples/notes/hogwild.py
    $ samebits run -n 1 examples/notes/hogwild.py
    worker 0: the loss fell: True
    worker 1: the loss fell: True
    at least 80 % of the test pictures are right: True

Who writes first is up to the scheduler, so every run ends with different bits.
"""

import torch
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from torch import nn


def train(worker: int, num_workers: int, model: nn.Module, losses: mp.Queue, received: mp.Event) -> None:
    """Train on every num_workers-th picture; `step()` writes into the memory that all processes share."""
    torch.set_num_threads(1)
    torch.manual_seed(worker)
    images, labels = pictures(slice(worker, 1437, num_workers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for _epoch in range(8):
        for batch in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            history.append(loss.detach())
    losses.put((worker, torch.stack(history)))
    received.wait()  # a tensor in a Queue is a handle to memory of this process: stay until it has been read


def pictures(which: slice) -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.images[which], dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target[which])


def main(num_workers: int = 2) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model.share_memory()  # before the processes start
    losses, received = mp.Queue(), mp.Event()
    workers = [mp.Process(target=train, args=(i, num_workers, model, losses, received)) for i in range(num_workers)]
    for process in workers:
        process.start()
    for worker, history in sorted((losses.get() for _ in workers), key=lambda pair: pair[0]):
        print(f"worker {worker}: the loss fell: {bool(history[-10:].mean() < history[:10].mean() / 2)}")
    received.set()
    for process in workers:
        process.join()
    images, labels = pictures(slice(1437, None))
    right = (model(images).argmax(1) == labels).float().mean()
    print(f"at least 80 % of the test pictures are right: {bool(right >= 0.8)}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # a process that has used several threads must not fork
    main()
