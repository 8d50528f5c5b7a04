"""Numbers, units and untrusted text as people read them."""
