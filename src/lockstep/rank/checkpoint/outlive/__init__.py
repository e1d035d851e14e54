"""What a run does so that a loss costs the step in which it happened: survivors leave that step's beginning in memory.

    every rank, between two steps:   last_snapshot    where the run is; models and optimizers are not copied
    whoever notices a loss:          last_snapshot.take          writes the state of then, unless it has changed since

The launcher waits for it (`launcher.supervise.last_snapshots`) and starts all ranks again. See docs/design/0021.
"""
