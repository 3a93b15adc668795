"""Who calls, and what they may do: the one truth that the scheduler and the planner share."""
