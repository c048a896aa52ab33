"""Notifications: messages about jobs and alarms, kept in an outbox until they are delivered."""
