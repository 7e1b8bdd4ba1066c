select pgwf.add_partitions()
