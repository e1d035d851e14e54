"""Samples: their order, their cut into lanes, the loader that fetches lanes, and the way to the device.

A loader knows which lanes this rank carries; it never asks another rank.
"""
