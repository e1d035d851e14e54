"""What runs in the ranks of a measurement, and what is compared with what there."""
