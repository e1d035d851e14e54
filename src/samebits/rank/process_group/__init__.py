"""The backend "samebits" of torch.distributed: a process group over shared memory.

    join(options)                  torch makes a group: the ranks meet (transport/local), then  group
      SamebitsProcessGroup         membership + one file for each family of operations      group
        .allreduce(tensors)        checks, addresses, dtype as a number                     reductions, arguments, operands
          exchange.begin(...)      the compiled part; errors in two kinds of words          exchange, arguments
            -> Work                what torch waits for, as long as anybody may             work

`movements` copy, and have all_to_all; `reductions` what nn.Embedding needs. `watched` shows operations to profilers as
torch's own, `membership` is monitored_barrier, `group` lets all ranks enter it together. `self_test` tries all of this
with the installed torch; `group` is the script's own group, which samebits's exchanges leave alone.
"""
