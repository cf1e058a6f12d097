"""The root of truth: what exists, what was planned, what was done, who may act."""
