select pgwf.set_worker_grace(p_grace => %(grace)s::interval)
