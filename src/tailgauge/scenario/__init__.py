"""The scenario file and the price file: TOML in, frozen typed values out.

Independent of: how traffic is sent, who runs it.
"""
