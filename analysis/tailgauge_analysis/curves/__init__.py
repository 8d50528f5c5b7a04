"""What is made of a load curve: figures, exports, and the comparison of two.

Input: a `Curve`, from its experiment or from that experiment's report.json. Independent of: how its points were measured.
"""
