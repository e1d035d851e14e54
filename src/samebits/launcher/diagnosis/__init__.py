"""From what can be seen of the ranks, from outside and without their help, to whose fault it is.

journals, /proc, stacks -> what each rank does, waits for, and used to need    scenes, probe -> scene
  -> for whom the others wait (one rank, or a circle), and whether too long     stalls
  -> does it move: processor time, files, other lines                           movement, stack
  -> why it does not come: inside of what, held back                            causes
  -> which of the known kinds of trouble that is                                findings

Only `scenes` and `probe` look; the rest is pure: (what was seen, settings, now) -> what it means.
"""
