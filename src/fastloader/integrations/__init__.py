"""FastLoader inside frameworks that would replace it by a stock DataLoader."""
