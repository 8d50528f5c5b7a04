"""Numbers, units and untrusted text as people read them, and values out of JSON.

Must not know: what the values mean.
"""
