select pgwf.wake_next(p_needs => %(needs)s::text[])
