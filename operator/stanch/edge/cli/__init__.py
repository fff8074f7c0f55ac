"""The commands of `stanch`, one file each."""
