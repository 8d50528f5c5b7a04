"""Numbers, units and foreign text as people read them."""
