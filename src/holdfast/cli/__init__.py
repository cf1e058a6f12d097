"""The command line: thin, quick, and it never loads Spark in its own process."""
