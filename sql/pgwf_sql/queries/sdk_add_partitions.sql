select pgwf_sdk.add_partitions()
