select pgwf_sdk.settle_awakeable(
  p_token => %(token)s,
  p_payload => %(payload)s,
  p_encoding => %(encoding)s,
  p_is_failed => %(is_failed)s)
