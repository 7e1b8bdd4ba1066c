select pgwf.channel(c.name) as channel
from unnest(%(channels)s::text[]) with ordinality c(name, ord)
order by c.ord
