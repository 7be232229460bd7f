"""Iterator of batches in, iterator of batches out."""
