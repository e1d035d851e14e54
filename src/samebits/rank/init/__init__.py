"""Being one rank: join the others, pin a device, set threads and numerics, seed the random streams."""
