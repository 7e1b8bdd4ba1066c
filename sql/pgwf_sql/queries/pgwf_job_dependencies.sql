select job_id, outcome, ended_at
from pgwf.job_dependencies(p_job_id => %(job_id)s)
