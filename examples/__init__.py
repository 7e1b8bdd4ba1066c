"""Programs that use pgwf as a user would; each is run by the test suite."""
