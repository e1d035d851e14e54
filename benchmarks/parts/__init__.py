"""What can be measured, a file for each part of `python -m benchmarks PART`."""
