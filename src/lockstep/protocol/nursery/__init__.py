"""What the launcher and the nursery tell each other."""
