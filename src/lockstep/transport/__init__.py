"""How ranks exchange tensors: one contract and its implementations.

`contract` defines what a transport promises and `frame` what every small exchange carries. `alone` is for one rank,
`shared_memory` for the ranks of one node, `over_nodes` for CPU ranks on several (with `across`: their connections, `watch`: who
notices a loss, `errands`: threads that wait), `torch_group` for torch.distributed (Gloo, NCCL), `backend_order` the same
without a fixed order, `host_memory` for ranks that share a GPU; `channel` sends tensors between two ranks. One suite in `tests/contract/` runs over all of them
and over `testing.fake_transport`.
"""
