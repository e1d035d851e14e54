"""What is in a checkpoint: the `State` of a run, and the forms in which its parts are written."""
