select pgwf_sdk.token_key()
