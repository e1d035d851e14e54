"""`samebits verify`: run one script in several ways and compare every bit. Plain Python, without torch.

for each number of ranks: a run, recorded            verify, ../trials
what ranks recorded, read back                       evidence, saved_bits (`--save`, `--against`)
the first difference                                 comparison
a closer look: values, cause                         explanation, result, cause
one step over lanes against the whole batch          plain
-> Result, shown                                     result, report
stopped, resumed, compared (`--interrupt`)           interruption, forgotten, continued
"""
