select pgwf_sdk.limited_needs(%(capabilities)s::text[])
