# For those used to make. Everything lives in run.py, which makes its own environment first.
PYTHON ?= python3

.PHONY: setup demo test check
setup demo test check:
	@$(PYTHON) run.py $@
