"""Plain Python functions, made durable on PostgreSQL."""
