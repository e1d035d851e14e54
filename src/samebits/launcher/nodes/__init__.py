"""Several nodes as one run: who takes part, the one authenticated way between them, and what they report to each other.

    place                       where this node is, by options or by a launcher
    address, interfaces         the one address on which node 0 listens, and this node's own; what the machine knows of both
    key                         the secret that all nodes of a run know, and how it reaches the nodes of a SLURM job

    cluster              the launcher's side: joins, waits, publishes what happens here, reads what happens elsewhere
      view, roster       pure: what the log says; which nodes make a round, and who is refused
      gathering          on node 0: decides on the next round, and on what comes first:
        preflight        every node tries whether it reaches the others
      liveness           who is silent, stopped or not reached any more
      star, node_star    this node's side of the star: on node 0, and elsewhere
        answering        on node 0: who called and has not proved the key yet
        calling          how a node calls node 0
        session          pure: how both prove the key; how what follows stays whole
        wire             sockets that do not block
      meeting            where ranks meet: sockets to their launcher, and the keys that node 0 holds
      streams            connections to a port of node 0's loopback, for torch's own stores
      door               whose process a connection comes from; locks torchrun's store for all but the star

No file imports torch. The launcher holds a `cluster` only with several nodes.
"""
