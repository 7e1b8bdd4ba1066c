select pgwf.set_notify(enabled => %(enabled)s)
