"""What load does: where slow requests lose their time, and what their length and their neighbours cost."""
