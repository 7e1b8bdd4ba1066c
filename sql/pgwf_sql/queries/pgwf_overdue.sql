select rule, subject from pgwf.overdue()
