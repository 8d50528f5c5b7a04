"""What a worker reports of itself: counters, one health row a second, live figures."""
