"""The command line: `pgwf`. Everything else is imported when a command needs it, so that help is quick."""

from pgwf_sdk.cli._app import main

__all__ = ["main"]
