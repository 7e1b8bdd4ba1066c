select pgwf.retain(p_keep => %(keep)s::interval, p_limit => %(limit)s)
