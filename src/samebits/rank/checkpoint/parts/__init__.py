"""What is in a state, kind by kind: how each is saved, checked and loaded."""
