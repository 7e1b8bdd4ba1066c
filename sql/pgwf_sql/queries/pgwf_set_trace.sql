select pgwf.set_trace(enabled => %(enabled)s)
