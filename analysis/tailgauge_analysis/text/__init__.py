"""Numbers, units and untrusted text as people read them, and values out of JSON.

Independent of: how the values were computed.
"""
