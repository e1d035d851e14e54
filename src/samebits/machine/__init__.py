"""What this computer has, and settings of one process. No torch, and no knowledge of any run.

`cores` and `gpus` find what may be used, `memory_pressure` whether the kernel kills for lack of memory, `processes`
this process's ties and limits, `leftovers` what dead processes left behind. `private_view` lets a process see the files
as they are while what it writes stays apart. `visible` is text as a terminal may show it.
"""
