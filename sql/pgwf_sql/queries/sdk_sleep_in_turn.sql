select pgwf.sleep_in_turn(p_listener => %(listener)s::text, p_needs => %(needs)s::text[])::text as xid
