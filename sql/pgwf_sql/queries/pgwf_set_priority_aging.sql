select pgwf.set_priority_aging(p_aging => %(aging)s::interval)
