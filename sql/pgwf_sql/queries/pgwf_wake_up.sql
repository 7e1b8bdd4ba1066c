select pgwf.wake_up(p_listener => %(listener)s)
