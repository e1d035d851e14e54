"""What the ranks of one node have in common: the compiled part, and shared memory.

    native.why_not()                     is there a compiled part?                           native
    process.RankProcess.here()           which machine, which namespaces, which process      process
    store = inherited_store()            torch's store in memory that the launcher made      shared_store
    group = meet(store, rank, size)      one control block that every rank maps              rendezvous
                                         what each rank reports, and how it waits              rendezvous
    group.register(site)                 which line of the script makes a call               sites

`native` tries something of ours with this torch, so a mismatch is found before ranks wait for each other.
"""
