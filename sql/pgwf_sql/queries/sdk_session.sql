select
  set_config('lock_timeout', '100ms', false),
  set_config('enable_seqscan', 'off', false),
  set_config('enable_bitmapscan', 'off', false),
  set_config('jit', 'off', false),
  set_config('plan_cache_mode', 'force_generic_plan', false)
