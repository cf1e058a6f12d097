"""The other side of the HTTP door: hand in tables, follow a run, fetch its results."""
