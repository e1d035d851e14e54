"""torch's own tests over lockstep's backend: `make test-torch`."""
