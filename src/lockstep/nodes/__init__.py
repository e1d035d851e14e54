"""Several nodes: who takes part, under which numbers, and what they tell each other.

    told, launchers/, facts -> choice -> place      what this node was told about itself, by options or by a launcher
    cluster    the launcher's side: joins, waits for the others, tells what happens here, hears what happens elsewhere
      roster   pure: from what was told, which nodes make a round, and who is refused
      link     a process forked from the nursery: the run's store, and the way to it
        log    what all nodes tell, in one order

The launcher holds a `cluster` only with several nodes; on one node nothing of this is loaded but `place`.
"""
