"""The 429 report: who was refused, by which limit, how much room there was, and what the retries did about it.

Rule: pure modules over the frames; `finding` puts them in order, `told` turns the result into plain values and text.
"""
