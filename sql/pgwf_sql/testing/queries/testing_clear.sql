select pgwf_testing.clear(p_now => %(now)s::timestamptz)
