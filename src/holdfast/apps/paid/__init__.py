"""A provider that keeps its own books, and a job that pays it: for the demo and the examples."""
