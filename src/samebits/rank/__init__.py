"""Inside a rank: everything that imports torch."""
