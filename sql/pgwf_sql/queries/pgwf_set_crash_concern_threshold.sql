select pgwf.set_crash_concern_threshold(p_threshold => %(threshold)s)
