"""Errors that are told to people as they are."""

from __future__ import annotations


class FileError(Exception):
    """A file of the user's cannot be used. The text names the file, the line and what to do."""
