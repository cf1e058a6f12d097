"""Spark: the only part that imports pyspark."""
