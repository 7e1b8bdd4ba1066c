select pgwf_testing.set_clock(p_now => %(now)s::timestamptz)
