select pgwf.crash_concern_threshold()
