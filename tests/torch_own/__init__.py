"""torch's own tests over samebits's backend: `make test-torch`."""
