"""Several nodes on this machine under `lockstep run` and under torchrun, with one script: see `__main__`."""
