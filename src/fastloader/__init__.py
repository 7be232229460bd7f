"""A drop-in `torch.utils.data.DataLoader` that is fast without tuning."""
