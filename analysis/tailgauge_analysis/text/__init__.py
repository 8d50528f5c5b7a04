<<<<<<< HEAD
"""Numbers, units and untrusted text as people read them."""
=======
"""Numbers, units and untrusted text as people read them. Values in, strings out. Must not know: runs, sections."""
>>>>>>> aba3af7 (Loading and text formatting in plain words)
