"""Two steps with a pause between them, on a PostgreSQL of its own: `python examples/hello.py`.

Kill it in the pause (kill -9, or pull the plug) and start it again: it goes on, and does not say hello twice.
"""

import sys
import threading
from datetime import timedelta

import psycopg

import pgwf_sql
from pgwf_sdk import Client, Context, Worker, step, workflow
from pgwf_sdk.embedded import EmbeddedServer


@step
def say(text: str) -> str:
    print(text, flush=True)
    return text.upper()


@workflow
def greet(ctx: Context, name: str) -> list[str]:
    hello = ctx.step(say, f"Hello, {name}")
    ctx.sleep(timedelta(seconds=5))
    goodbye = ctx.step(say, f"Goodbye, {name}")
    return [hello, goodbye]


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "Ada"
    with EmbeddedServer() as server, Client(server.dsn) as client:
        with psycopg.connect(server.dsn) as connection:
            pgwf_sql.install(connection)
        worker = Worker(client, workflows=[greet])
        (working := threading.Thread(target=worker.run, daemon=True)).start()
        print(client.start(greet(name), run_id=f"hello-{name}").result())
        worker.stop()
        working.join()
