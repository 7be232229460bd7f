"""Read images from storage: one module per format."""
