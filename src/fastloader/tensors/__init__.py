"""Tensors of batches in memory: where they are allocated, how rows are gathered and joined."""
