"""Other people's libraries and the shapes of their examples under torchrun and under samebits: `make test-peers`."""
