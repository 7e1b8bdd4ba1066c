select pgwf.set_expired_grace(p_grace => %(grace)s::interval)
