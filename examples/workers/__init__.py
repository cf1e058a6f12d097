"""Coffee-shop analytics without Spark: plain Python workers that may be killed at any moment.

python -m examples.workers DATA --out ANSWERS --state STATE
"""
