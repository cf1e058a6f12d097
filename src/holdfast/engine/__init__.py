"""Decides, durably, what is done next: plan, attempt, commit, barrier, results."""
