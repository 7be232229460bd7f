"""The settings of a loader: facts, what the caller gave, what was measured, and the choice."""
