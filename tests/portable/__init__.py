"""Checks that the portable mode gives the same bits on every x86-64 CPU: of each of torch's operators."""
