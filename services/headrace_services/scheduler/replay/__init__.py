"""Replays a study's event log and compares every decision."""
