"""One section of the report a file or folder: it computes, and words its own answer. Must not know: formats."""
