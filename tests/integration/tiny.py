"""A tiny pipeline where a router process can find it."""

from tests.unit.plain_runs import tiny_pipeline

pipe = tiny_pipeline()
