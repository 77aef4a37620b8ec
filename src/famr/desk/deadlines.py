"""Deadline of a request: one month after it was received [GDPR, Art. 12(3)]."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime

from famr.errors import RequestError


def today() -> date:
    """The current date in UTC."""
    return datetime.now(UTC).date()


def one_month_after(day: date) -> date:
    """The same day of the next month, or the last day of a shorter month.

    Args:
        day: The date the month begins.

    >>> str(one_month_after(date(2026, 1, 31))), str(one_month_after(date(2026, 12, 5)))
    ('2026-02-28', '2027-01-05')
    """
    year, month = (day.year + 1, 1) if day.month == 12 else (day.year, day.month + 1)
    return date(year, month, min(day.day, calendar.monthrange(year, month)[1]))


def read_date(text: str, option: str) -> date:
    """Parse a date written YYYY-MM-DD.

    Args:
        text: The date.
        option: Command-line option it was given for, named in the error.

    Raises:
        RequestError: The text is not a date.

    >>> read_date("2026-03-01", "--received")
    datetime.date(2026, 3, 1)
    """
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise RequestError(f"{option} takes a date, got {text!r}.", fix=f"{option} 2026-03-01") from error


def time_left(deadline: date, day: date) -> str:
    """Days until a deadline, in words.

    Args:
        deadline: The deadline.
        day: The current date.

    >>> time_left(date(2026, 3, 2), date(2026, 3, 1)), time_left(date(2026, 3, 2), date(2026, 3, 5))
    ('1 day left', '3 days late')
    """
    days = (deadline - day).days
    if days == 0:
        return "due today"
    count = abs(days)
    return f"{count} day{'' if count == 1 else 's'} {'left' if days > 0 else 'late'}"
