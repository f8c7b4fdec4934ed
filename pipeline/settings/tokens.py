"""Tokens: a text that nothing shows, and what makes a token unusable."""

from __future__ import annotations


class Secret:
    """A text that no repr and no message shows."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text


def find_token_problem(token: str) -> str | None:
    """Return what makes a token unusable, as a predicate without the token; None if nothing does."""
    if not token:
        return "is empty"
    if token.strip().lower() == "bearer" or token.strip().lower().startswith("bearer "):
        return "starts with `Bearer`"
    if any(char.isspace() for char in token):
        return "holds white space"
    if any(char in "\"'`" for char in token):
        return "holds a quotation mark"
    if not (token.isascii() and token.isprintable()):
        return "holds characters that a token cannot have"
    return None
