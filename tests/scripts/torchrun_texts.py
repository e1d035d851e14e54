"""Scripts for torchrun that train with DDP, Accelerate and Fabric, as texts; each begins with `DATA`."""

DATA = """
    import hashlib, json, os, sys, time
    import torch, torch.nn.functional as F
    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 8), torch.randn(64, 1)
    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    def tell(world, net, first, last):
        weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        said = {"rank": os.environ["RANK"], "world": world, "first": first, "last": last}
        with open(f"rank-{os.environ['RANK']}.json", "w") as file:
            json.dump({**said, "weights": hashlib.sha256(weights).hexdigest()}, file)
"""
DDP = """
    import torch.distributed as dist
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = F.mse_loss(net(inputs[rank::world]), targets[rank::world])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    tell(world, net, losses[0], losses[-1])
    dist.destroy_process_group()
"""
ACCELERATE = """
    from accelerate import Accelerator
    accelerator = Accelerator()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pairs = torch.utils.data.TensorDataset(inputs, targets)
    net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(pairs, batch_size=16))
    losses = []
    for epoch in range(6):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            accelerator.backward(loss)
            optimizer.step()
        losses.append(loss.item())
    tell(accelerator.num_processes, net, losses[0], losses[-1])
    accelerator.end_training()
"""
FABRIC = """
    from lightning_fabric import Fabric
    fabric = Fabric()
    fabric.launch()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer = fabric.setup(net, optimizer)
    pairs = torch.utils.data.TensorDataset(inputs, targets)
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(pairs, batch_size=16))
    losses = []
    for epoch in range(6):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            fabric.backward(loss)
            optimizer.step()
        losses.append(loss.item())
    tell(fabric.world_size, net, losses[0], losses[-1])
"""
