"""Benchmarks: each module answers one question. See docs/performance.md."""
