select pgwf.sleep_on(p_listener => %(listener)s::text, p_channels => %(channels)s::text[])::text as xid
