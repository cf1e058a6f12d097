"""The ledger: what was asked of a provider, what it answered, and who is asking now."""
