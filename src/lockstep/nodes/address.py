"""Which address of a node the others use."""
