"""Fan-outs: how slow the slowest leg is, how slow it would be if legs knew nothing of each other, and why it is not."""
