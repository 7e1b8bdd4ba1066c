select pgwf.worker_grace()
