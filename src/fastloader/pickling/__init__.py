"""What travels to worker processes: pickled, by name, by value, or why it cannot."""
