"""The same work on pgwf and its peers, on one PostgreSQL, in turn: `python3 run.py bench`. Not part of the product."""
