"""The backend "lockstep" of torch.distributed: a process group over shared memory.

    join(options)                  torch makes a group: the ranks meet (node/), then        joining
      LockstepProcessGroup         membership + one file for each family of operations      group
        .allreduce(tensors)        checks, addresses, dtype as a number                     reductions, arguments, operands, encoding
          exchange.begin(...)      the compiled part; errors in two kinds of words          exchange, errors
            -> Work                what torch waits for, as long as anybody may             work

`reading` is what the compiled part reads of a plain call by itself. `movements` copy, `dealing` is all_to_all, `sparse_sum` what nn.Embedding needs. `watched` shows operations to profilers as
torch's own, `monitored` is monitored_barrier, `new_group` lets all ranks enter it together. `self_test` tries all of this
with the installed torch; `default_group` is the script's own group, which lockstep's exchanges leave alone.
"""
