select pgwf.priority_aging()
