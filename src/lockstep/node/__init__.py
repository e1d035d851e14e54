"""What the ranks of one node have in common: the compiled part, and memory that they share.

    native.why_not()                     is there a compiled part?                           native
    process.Place.here()                 which machine, which namespaces, which process      process
    store = inherited_store()            torch's store in a memory that the launcher made    shared_store
    group = meet(store, rank, size)      one control block that every rank maps              meeting
    group.register(site)                 which line of the script makes an operation         sites

`trial` tries something of ours with this torch, so that what does not fit is known before ranks wait for each other.
"""
