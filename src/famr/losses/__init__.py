"""The objective of the paper as pure functions [FAMR, Eq. (1)–(5)]."""
