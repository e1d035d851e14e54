"""The command line: one file per command.

`samebits COMMAND ...` imports only that command                   main
options before SCRIPT and right after it, the rest is its own      script_words, torchrun_options
options that several commands have                                 shared_options
from the options of run to a request, or a refusal                 launch_request
whether the script exists, what this machine has                   program
whether it is Python, without running it                           script_words
a job script for SLURM                                             sbatch
what verify, bench and doctor show                                 under_way
"""
