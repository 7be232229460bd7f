"""Runs fetch and collate: in this process, in worker processes or in threads."""
