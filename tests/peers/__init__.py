"""Other people's libraries and the shapes of their examples under torchrun and under lockstep: `make test-peers`."""
