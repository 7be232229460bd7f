"""The order in which samples are read, and the seed of an epoch."""
