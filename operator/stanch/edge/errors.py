"""Errors that are told to people as they are, and the exit codes that go with trouble (docs/output.md)."""

from __future__ import annotations

EXIT_USAGE, EXIT_DATA, EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_INTERRUPTED = 64, 65, 69, 70, 130


class FileError(Exception):
    """A file of the user's cannot be used. The text names the file, the line and what to do."""
