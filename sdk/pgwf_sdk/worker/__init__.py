"""Workers: processes that take runs and execute them."""

from pgwf_sdk.worker._worker import Worker

__all__ = ["Worker"]
