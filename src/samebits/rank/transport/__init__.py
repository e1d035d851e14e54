"""How ranks exchange tensors: one contract and its implementations.

    one rank                                    alone
    ranks of one node                           shared_memory, local/
    CPU ranks on several nodes                  over_nodes, node_sum
    CPU ranks over Gloo                         torch_group
    ranks with a GPU each, or one for several   gpu_ranks, device_sums, nccl

`contract` defines what a transport promises, and what every small exchange carries. `across` has the connections over Gloo
and the threads that wait for them, `loss` what a transport does when it loses a rank, `channel` tensors between two ranks,
`together` errors that all ranks raise. One suite in `tests/contract/` runs over all of them and over `testing.fake_transport`.
"""
