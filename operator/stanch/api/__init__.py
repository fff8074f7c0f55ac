"""The kinds that people write and read: LeakWatch and LeakIncident, group stanch.dev."""
