"""What ails an endpoint: checks with their evidence, and the findings among them, the largest gain first."""
