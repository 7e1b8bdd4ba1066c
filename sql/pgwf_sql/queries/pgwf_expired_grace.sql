select pgwf.expired_grace()
