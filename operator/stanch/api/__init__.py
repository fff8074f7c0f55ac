"""The kinds that people write and read: LeakWatch, DisaggDeployment and LeakIncident, group stanch.dev."""
