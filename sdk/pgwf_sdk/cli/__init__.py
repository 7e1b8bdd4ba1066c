"""The command line: `pgwf`."""
