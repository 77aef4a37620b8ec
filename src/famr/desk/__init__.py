"""The deletion desk: records requests, carries each out once, and watches the chain of runs that results."""

from famr.extras import require_extra

require_extra("sqlalchemy", "desk")
