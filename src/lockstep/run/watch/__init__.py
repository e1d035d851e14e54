"""What every run looks at while a script trains, to say what the script cannot have meant.

`strangers`: optimizers that `prepare` did not take. `shares`: evaluations that nobody put together. `written_files`: one path
that several ranks write. `holdings`: what the script holds besides (averages, schedulers), for messages and `verify`.
"""
