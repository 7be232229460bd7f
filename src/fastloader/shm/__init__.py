"""Memory shared between processes: bytes, no tensors and no images."""
