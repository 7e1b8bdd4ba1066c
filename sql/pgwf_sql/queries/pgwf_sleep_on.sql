select s.xid::text as xid, pgwf.channel(c.name) as channel
from pgwf.sleep_on(p_listener => %(listener)s, p_channels => %(channels)s::text[]) s(xid)
cross join unnest(%(channels)s::text[]) c(name)
