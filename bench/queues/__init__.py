"""Systems whose jobs are taken with plain SQL calls."""
