"""Tansu, a broker in one binary, as a child process. `TansuBackend` is in `backend`."""
