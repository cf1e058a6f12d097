"""The ground everything stands on: ids, clock, files, frames, intervals, crash points, invariants.

Nothing here knows of runs, chunks or Spark.
"""
