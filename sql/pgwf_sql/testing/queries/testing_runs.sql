select r.run_id from pgwf_sdk.run as r order by r.n
