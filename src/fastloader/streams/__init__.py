"""What engines, stages and iterators share of a stream of batches."""
