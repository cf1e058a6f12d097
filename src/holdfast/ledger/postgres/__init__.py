"""A ledger in PostgreSQL, for clusters. Format and transactions: docs/internals/ledger-postgres.md.

address.py     the URL, and what of it may be said
connection.py  one connection, made again when it is lost; the only importer of psycopg
schema.py      tables, made once under a lock
watch.py       who is silent for too long, by the watcher's own clock
slots.py       the statements
ledger.py      the ledger
books.py       the ledger as a whole, and what a person takes out of it
"""
