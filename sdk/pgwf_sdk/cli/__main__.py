"""`python -m pgwf_sdk.cli`, for where the `pgwf` script is not on the path."""

from pgwf_sdk.cli import main

main()
