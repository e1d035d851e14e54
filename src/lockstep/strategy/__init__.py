"""How a model is laid on ranks: one contract, one file per way of doing it.

`replica` is `single` and `ddp`: every rank holds the model. `arena` keeps parameters in flat buffers, `gradients` is
what a lane's backward writes into and what the ranks reduce, `buffers` are BatchNorm's statistics and their like.
`zero1` is a replica of which each rank updates a `share`; `visibility` is how the others see what it wrote.
"""
