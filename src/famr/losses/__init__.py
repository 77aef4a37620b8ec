"""The paper's objective as pure functions [FAMR, Eq. (1)–(5)]."""
