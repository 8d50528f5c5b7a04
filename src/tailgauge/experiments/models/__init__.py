"""Model choice: which models meet the objectives on the same traffic, and what each costs."""
