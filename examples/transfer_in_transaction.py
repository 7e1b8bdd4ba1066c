"""Start a run in the transaction that books an order: both happen, or neither does.

pgwf dev examples/transfer_in_transaction.py                # a worker for `ship`
DATABASE_URL=… python examples/transfer_in_transaction.py   # in another terminal: books two orders, one of them fails
"""

from __future__ import annotations

import os
from datetime import timedelta

import psycopg

from pgwf_sdk import Client, Context, step, workflow

ORDERS = """
create table if not exists shop_order (
  order_id text primary key,
  item text not null,
  amount int not null constraint "amount is positive" check (amount > 0)
)
"""


@step
def pack(order_id: str) -> str:
    return f"packed {order_id}"


@workflow
def ship(ctx: Context, order_id: str) -> str:
    return ctx.step(pack, order_id)


def book(client: Client, connection: psycopg.Connection, order_id: str, item: str, amount: int) -> None:
    """Insert the order and start its shipment. Whatever fails, the other is undone with it."""
    with connection.transaction():
        client.start(ship(order_id), run_id=f"ship-{order_id}", connection=connection)
        connection.execute("insert into shop_order values (%s, %s, %s)", [order_id, item, amount])


def main(dsn: str) -> None:
    with Client(dsn) as client, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
        book(client, connection, "B-1", "teapot", 1)
        try:
            book(client, connection, "B-2", "teapot", -1)
        except psycopg.errors.CheckViolation as error:
            print(f"B-2 was not booked, and nothing is shipped: {error.diag.message_primary}")
        print(client.get("ship-B-1", ship).result(timeout=timedelta(seconds=30)))


if __name__ == "__main__":
    main(os.environ["DATABASE_URL"])
