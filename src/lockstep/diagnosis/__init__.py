"""From what can be seen of the ranks to whose fault it is. Pure: (what was seen, settings, now) -> findings.

what each rank does, waits for, and used to need            scene, pace
  -> for whom the others wait: one rank, or a circle        culprits
  -> does it move: processor time, files, other lines       movement, stack
  -> why it does not come: asleep, held back, a loop        causes
  -> stalled, slow, or nothing to say                       stalls
"""
