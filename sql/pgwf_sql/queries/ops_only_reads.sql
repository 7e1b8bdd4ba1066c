select set_config('transaction_read_only', 'on', true) as is_read_only
