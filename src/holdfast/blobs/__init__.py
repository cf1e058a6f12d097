"""The bytes: named, written once, never changed."""
