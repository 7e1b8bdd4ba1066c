select pgwf.channel(c.name) as channel
from unnest(%(channels)s::text[]) c(name)
