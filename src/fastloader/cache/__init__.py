"""Decoded images that all workers of a machine share."""
