"""What runs in the ranks of a measurement, and what stands beside what there."""
