select pgwf.is_trace_enabled()
