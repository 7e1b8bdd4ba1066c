select rule, subject from pgwf.check()
