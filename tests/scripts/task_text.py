"""A script for tasks of srun and mpirun: it trains, and says its bits and on which addresses its process listens."""

TASK = """
    import hashlib, json, os, subprocess, sys, time
    from pathlib import Path
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits
    from samebits.rank.run import start

    def asked():
        # whether the launcher was sent a signal, and asks the run to save and end
        from samebits.protocol.environment import decode
        from samebits.protocol.run_folder import RunFolder
        from samebits.protocol.journal.signals import Asking

        return Asking(RunFolder(decode(os.environ).settings.run_folder).journal(0)).asked

    run = samebits.init(seed=3, lanes=4, threads=1 if "THREADS" not in os.environ else None)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(99, 20, generator=generator), torch.randint(0, 5, (99,), generator=generator))
    model = nn.Sequential(nn.Linear(20, 40), nn.BatchNorm1d(40), nn.Dropout(0.2), nn.Linear(40, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=18, shuffle=True))
    for epoch in run.epochs(int(os.environ.get("EPOCHS", 2))):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            if step.number == 8 and "HOLDS" in os.environ and run.rank == 0:
                Path("holding").touch()
                while not asked():
                    time.sleep(0.01)
            if step.number == 8 and os.environ.get("DIES") == str(run.rank):
                os.kill(os.getpid(), 9)
    told = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True).stdout.splitlines()
    nodes = start._present[0].components.transport.nodes
    bits = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.state_dict().values())).hexdigest()
    own = {
        "bits": bits,
        "world": run.world_size,
        "nodes": None if nodes is None else nodes.sizes,
        "local rank": run.local_rank,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "listens": sorted({line.split()[3].rpartition(":")[0] for line in told if f"((\\"python\\",pid={os.getpid()}," in line and "hydra" not in line}),
    }
    Path(f"rank-{run.rank}.json").write_text(json.dumps(own))
"""
