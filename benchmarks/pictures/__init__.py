"""Pictures of measurements, for `--picture`."""
