"""What the tasks of a GPU day run: each in a process of its own, and most of them in a few lines."""
