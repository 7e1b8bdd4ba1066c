"""Licence audit of every Python distribution in a folder, as a durable workflow with a human decision in it."""
