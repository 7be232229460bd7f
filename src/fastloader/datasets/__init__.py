"""Datasets and picklable wrappers around any dataset."""
