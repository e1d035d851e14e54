"""What `lockstep checkpoint` finds out about saved states. Plain Python, without torch.

a word: a run's name, its folder, a folder of states, a state  -> states     places
a URL: copies in a private folder, then as any state           remote
the manifest and the sizes of files                            -> ls         summary
documents, and the headers of tensor files                     -> show       description, tensor_table
every byte                                                     -> verify     examination
tables and sentences                                                         report, tables

`diff` and `export` need the numbers, and so torch: `lockstep.checkpoint.comparison` and `.export`.
"""
