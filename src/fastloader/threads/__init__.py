"""Threads that are kept: for the parts of one job, for batches ahead, and beside forks."""
