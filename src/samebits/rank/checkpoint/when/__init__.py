"""When a checkpoint is taken: on a schedule or a signal (`automatic`), often enough for a loss (`snapshots`), and at one (`last_snapshot`)."""
