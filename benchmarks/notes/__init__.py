"""The notes' comparison of a pipeline with one device, repeated."""
