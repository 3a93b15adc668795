"""Plays a study's event log again and compares every decision."""
