"""Seeds and random numbers: by key, without state, and apart from the global generators."""
