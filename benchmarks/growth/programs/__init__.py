"""What runs in the ranks."""
