"""torch's own tests over lockstep's back end: `make test-torch`."""
