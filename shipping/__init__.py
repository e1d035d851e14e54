"""What makes the packages that people install: wheels, a trial of them, releases, and the list of tested versions."""
