"""The command line: one file per command.

`lockstep COMMAND ...` imports only that command                   main
options before SCRIPT and right behind it, the rest is its own     script_words, torchrun_options
options that several commands have                                 shared_options, files_options
is there such a script, what has this machine                      program
what verify, bench and doctor show                                 screen
"""
