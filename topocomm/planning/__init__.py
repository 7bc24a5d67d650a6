"""Who sends what to whom, and when: schedules, proofs, costs, bounds and the planner."""
