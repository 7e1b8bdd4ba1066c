"""Finds in source code what would go wrong in a replay; it reads the code and never runs it.

`pgwf lint shop.py` is this on the command line.
"""

from pgwf_sdk.lint._findings import RULES, Finding
from pgwf_sdk.lint._visitor import has_workflow, lint_source

__all__ = ["RULES", "Finding", "has_workflow", "lint_source"]
