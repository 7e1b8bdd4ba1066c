select file, line, code
from pgwf_journal.code_numbers(p_build => %(build)s::text, p_files => %(files)s::text[], p_lines => %(lines)s::int[])
