"""Leasing on PostgreSQL: who may work on which job, until when."""
