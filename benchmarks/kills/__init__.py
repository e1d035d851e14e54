"""Ordinary trainings whose ranks, loader workers and launchers are killed or stopped at random moments."""
