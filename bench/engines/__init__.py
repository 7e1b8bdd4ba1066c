"""Systems that execute work in worker processes: durable workflows, or plain jobs."""
