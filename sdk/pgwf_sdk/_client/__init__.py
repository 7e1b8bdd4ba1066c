"""The clients: start runs, look at them, send them something, wait for their results, and answer human tasks."""

from pgwf_sdk._client._async import AsyncClient, AsyncHumanTasks, AsyncRun
from pgwf_sdk._client._sync import Client, HumanTasks, Run
from pgwf_sdk.ops._rows import ForkPrice

__all__ = ["AsyncClient", "AsyncHumanTasks", "AsyncRun", "Client", "ForkPrice", "HumanTasks", "Run"]
