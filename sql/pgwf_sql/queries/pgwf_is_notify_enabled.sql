select pgwf.is_notify_enabled()
