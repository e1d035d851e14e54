"""Several nodes as one run: who takes part, the one guarded way between them, and what they tell each other.

    told, launchers/, facts -> choice -> place   what this node was told about itself, by options or by a launcher
    cluster              the launcher's side: joins, waits, tells what happens here, hears what happens elsewhere
      view, roster       pure: what the log tells; which nodes make a round, and who is refused
      gathering          on node 0: decides on the next round, and on what comes first:
        preflight, reach every node tries whether it reaches the others; pure, and the connections
      sayings            what nodes tell each other about their ranks beside that
      link               a process forked from the nursery: in touch with the others, decides nothing
        log              what all nodes tell, in one order
        order            who makes that order: the first node's link
        gate             on node 0: the one listening socket; lets in who has the key, hands on to the store
        door             locks the store's port on node 0 for all but the gate
        tunnel           on every node: a port on 127.0.0.1 whose connections come out behind the gate

    key                  the secret that all nodes of a run know, and where they take it from
    munge                how it reaches the nodes of a SLURM job
    p256, identity       the certificate that they derive from it, and TLS with it
    address, interfaces  the one address on which node 0 listens, and its interface; what the machine says of both
    accepting            how gate and tunnel accept connections
    loop_thread, pair    one thread, and two sockets whose bytes it hands on
    greeting, dial       how a connection begins, and what is said when it cannot
    door, callers        locks the store's port for all but the gate; whose process a connection comes from
    withdrawal, farewell a node that cannot start tells the others why, and how
    files                pure: how many the first node has open
    scale                pure: what all this costs with very many nodes

No file imports torch before a link runs. The launcher holds a `cluster` only with several nodes.
"""
