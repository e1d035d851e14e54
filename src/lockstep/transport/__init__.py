"""How ranks exchange tensors: one contract, and everything that fulfils it.

`contract` says what a transport promises, `alone` is one rank, `group` is torch.distributed (Gloo, NCCL), `fake` is
several ranks as threads of one process, for tests. One suite in `tests/contract/` runs over all of them.
"""
