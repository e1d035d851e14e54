"""Several nodes as one run: who they are, and the one guarded way between them. Each node's process for it is its link.

key, key_source       the secret that all nodes of a run know, and where they take it from
munge                 how it reaches the nodes of a SLURM job
p256, identity        the certificate that they derive from it, and TLS with it
address, interfaces   the one address on which node 0 listens, and the interface it belongs to; what the machine says of both
loop_thread, pair     one thread, and two sockets whose bytes it hands on
greeting, dial        how a connection begins, and what is said when it cannot
gate                  on node 0: the one listening socket; lets in who has the key, hands on to the store
tunnel                on every node: a port on 127.0.0.1 whose connections come out behind the gate
door                  locks the store's port on node 0 for all but the gate
callers               whose process a connection on this machine comes from

No file imports torch.
"""
