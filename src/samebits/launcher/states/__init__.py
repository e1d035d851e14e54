"""What `samebits checkpoint` finds out about saved states, as values of JSON. Plain Python, without torch.

a word: a run's name, its folder, a folder of states, a state, a URL  -> states     places
the manifest and the sizes of files                            -> ls         description
documents, and the headers of tensor files                     -> show       description
every byte                                                     -> verify     description
tables and sentences                                                         report

`diff` and `export` need the numbers, and so torch: `samebits.rank.checkpoint.format.comparison` and `.weights.export`.
"""
