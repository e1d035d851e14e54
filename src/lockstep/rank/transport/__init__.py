"""How ranks exchange tensors: one contract and its implementations.

`contract` defines what a transport promises, and what every small exchange carries. `alone` is for one rank,
`shared_memory` for the ranks of one node, `over_nodes` for CPU ranks on several (with `across`: their connections, who
notices a loss, threads that wait), `torch_group` for CPU ranks over Gloo, `gpu_ranks` for ranks with a GPU each (`nccl`
beside one of the others; `device_sums`: their sums, and those without a fixed order) and for ranks that share a GPU; `channel` sends tensors between two ranks. `loss` is what a transport does when it loses a rank. One suite in
`tests/contract/` runs over all of them
and over `testing.fake_transport`.
"""
