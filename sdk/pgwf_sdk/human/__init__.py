"""Programs that decide for people."""

from pgwf_sdk.human._reviewer import AsyncReviewer, Reviewer

__all__ = ["AsyncReviewer", "Reviewer"]
