"""What a saved state is on the disk and at a URL: plain Python, which launcher and ranks read."""
