"""An epoch: which one, where it begins, how it runs, how far the consumer is."""
